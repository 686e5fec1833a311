"""The client's side of a supervisor: started with the first sandbox, gone with the last."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from excise.errors import CreateError, SandboxLost
from excise.host import packets
from excise.host.beside import start
from excise.host.directories import remove
from excise.host.writable import Writable

_IN_FLIGHT_BYTES = 8192
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from excise.host.supervisor import main
main(int(sys.argv[2]))
"""


class Keeper:
    """A keeper as its client sees it. Closing it ends every process below and removes the sandbox's directory."""

    def __init__(
        self,
        control: socket.socket,
        gone: int,
        directory: str | None,
        *,
        on_close: Callable[["Keeper"], None],
        rouse: Callable[[], None],
    ) -> None:
        control.setblocking(False)
        # Few requests in flight: the kernel counts the descriptors in them against what this user may open.
        control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT_BYTES)
        self._control = control
        self._writable = Writable(control.fileno())
        self._gone = gone
        self._directory = directory
        self._on_close = on_close
        self._rouse = rouse
        self._closing: asyncio.Task[None] | None = None

    async def opened(self) -> None:
        loop = asyncio.get_running_loop()
        answer = await loop.sock_recv(self._control, 65536)
        if not answer:
            raise CreateError("the process that keeps the sandbox died while it was made")
        record = packets.decode(answer)
        if "error" in record:
            raise CreateError(f"the sandbox's root could not be mounted: {record['error']}")

    async def send(self, descriptors: list[int], note: dict[str, Any] | None = None) -> None:
        """Hand over a request; the descriptors stay the caller's to close."""
        while True:
            try:
                packets.send(self._control, descriptors, note)
            except BlockingIOError:
                await self._writable.wait()
            except OSError as error:
                raise SandboxLost(f"the process that keeps this sandbox does not answer: {error.strerror}") from None
            else:
                return

    async def answer(self) -> bool:
        """Whether it does: on a socket of the question's own, which closes when there is nobody any more."""
        ours, theirs = packets.pair()
        with ours:
            ours.setblocking(False)
            with theirs:
                await self.send([theirs.fileno()], {"alive": True})
            try:
                return bool(await asyncio.get_running_loop().sock_recv(ours, 65536))
            except OSError:
                return False

    async def close(self) -> None:
        if self._closing is None:
            self._on_close(self)
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        await _end_of(self._control.fileno())
        self._writable.forget()
        self._control.close()
        self._rouse()
        await _end_of(self._gone)
        os.close(self._gone)
        if self._directory is not None:
            # The supervisor has removed it, unless it was killed: then it falls to us.
            await asyncio.to_thread(remove, self._directory)


async def _end_of(descriptor: int) -> None:
    """Wait until the other side has closed."""
    loop = asyncio.get_running_loop()
    while True:
        readable = loop.create_future()
        loop.add_reader(descriptor, lambda waiting=readable: waiting.done() or waiting.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(descriptor)
        try:
            if not os.read(descriptor, 65536):
                return
        except BlockingIOError:
            continue
        except OSError:
            return


class Link:
    """The supervisor of one substrate on this machine."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keepers: set[Keeper] = set()

    def _start(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            self._rouse()
            return self._control
        self._forget()
        ours, self._process = start(_PROGRAM)
        self._control = ours
        return ours

    async def keeper(
        self, directory: Path, *, workdir: str, root: dict[str, Any] | None, lease_s: float, keep: bool = False
    ) -> Keeper:
        """Open a sandbox's keeper; `directory` is the sandbox's own and goes with it, unless the caller must `keep` it."""
        control = self._start()
        request = {"directory": str(directory), "workdir": workdir, "root": root, "lease_s": lease_s, "keep": keep}
        ours, theirs = packets.pair()
        with theirs, contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            gone, gone_there = os.pipe()
            undo.callback(os.close, gone)
            always.callback(os.close, gone_there)
            body = packets.body(request)
            always.callback(os.close, body)
            packets.send(control, [body, theirs.fileno(), gone_there])
            undo.pop_all()
        keeper = Keeper(ours, gone, None if keep else str(directory), on_close=self._keepers.discard, rouse=self._rouse)
        self._keepers.add(keeper)
        try:
            await keeper.opened()
        except BaseException:
            await keeper.close()
            raise
        return keeper

    async def close(self) -> None:
        """Close what is open and wait for the supervisor to end."""
        for keeper in tuple(self._keepers):
            await keeper.close()
        process = self._process
        self._forget()
        if process is not None:
            await asyncio.to_thread(process.wait)

    def _rouse(self) -> None:
        """Continue the supervisor, if a program has stopped it: those below it have it to do that, and it has us."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _forget(self) -> None:
        control, self._control, self._process = self._control, None, None
        if control is not None:
            control.close()
