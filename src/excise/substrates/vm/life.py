"""One machine from its start to its end: its files, its lease, and why it is no more."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from excise.errors import SandboxLost
from excise.handles import without_secrets
from excise.host.directories import remove
from excise.spec import Spec
from excise.storage.pins import Pin
from excise.vmm.qemu import Machine

ENDING_S = 2.0
"""A connection into a machine breaks a moment before the machine has ended."""


class Life:
    """A running machine and all that goes with it."""

    def __init__(self, machine: Machine, directory: Path, pin: Pin, spec: Spec, lease_s: float) -> None:
        self.machine = machine
        self.id = directory.name
        self.spec = spec
        self.directory = directory
        self._pin = pin
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._lease = self._loop.call_later(lease_s, self._expire)
        self._on_end: list[Callable[[str], None]] = []
        self._closing: asyncio.Task[None] | None = None
        machine.on_end = self._ended
        machine.qmp.event("BLOCK_IO_ERROR").add_done_callback(self._disk_failed)

    # ---- its end

    def at_end(self, told: Callable[[str], None]) -> None:
        """Be told why, once, if it ends and nobody closed it."""
        self._on_end.append(told)

    def _ended(self, why: str) -> None:
        self.machine.console.keep(self.id)
        for told in self._on_end:
            told(self._words(why))

    def end(self, reason: str) -> None:
        """It cannot go on, for this reason."""
        self._reason = self._reason or reason
        if not self.machine.ended.done():  # it is our child, and not reaped yet: the number is still its own
            os.kill(self.machine.pid, signal.SIGKILL)

    def _expire(self) -> None:
        self.end("its lease ran out, and nobody renewed it")

    def _disk_failed(self, told: "asyncio.Future[dict[str, Any]]") -> None:
        if told.cancelled() or told.exception() is not None:
            return  # the machine has ended
        full = told.result().get("nospace")
        self.end(
            "the host's disk is full" if full else f"the host's disk failed ({told.result().get('reason', 'no reason said')})"
        )

    def why(self) -> str:
        """Why it is no more."""
        return self._words(self.machine.why())

    def _words(self, why: str) -> str:
        return without_secrets(f"{self._reason}; {why}" if self._reason else why, self.spec)

    async def lost(self, otherwise: str) -> SandboxLost:
        """The error to raise; `otherwise`: what was seen from outside. The machine's own end says more, if it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.machine.ended), ENDING_S)
        return SandboxLost(self._words(f"{otherwise}: {self.machine.why()}"))

    def renew(self, lease_s: float) -> None:
        self._lease.cancel()
        self._lease = self._loop.call_later(lease_s, self._expire)

    async def close(self) -> None:
        """Nothing of it is left on return. Twice is fine."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._lease.cancel()
        self._on_end.clear()
        try:
            await self.machine.close()
        finally:
            self._pin.close()
            await asyncio.to_thread(partial(remove, str(self.directory)))
