"""What a case is given to work with: sandboxes that are closed for it, whatever happens."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec

from excise.contract.bound import NeedsOwn, Sandboxes
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Capabilities, Handle, Snapshot, Substrate

CREATE_S = 50.0
ACTION_S = 25.0
"""The timeout of actions that ought to end by themselves: under a case's deadline, so that the reason is theirs."""
LEASE_S = 600.0
T = TypeVar("T")


class Bench:
    """One case's sandboxes, on one substrate."""

    def __init__(
        self,
        substrate: Substrate,
        capabilities: Capabilities,
        spec: Spec,
        *,
        sandboxes: Sandboxes | None = None,
        lent: Substrate | None = None,
        patience: float = 1.0,
    ) -> None:
        """`lent`: hands out one sandbox, which is all that this case may have. `patience`: deadlines are so much longer."""
        self.substrate = substrate
        self.capabilities = capabilities
        self.spec = spec
        self.nonce = uuid.uuid4().hex
        """Found nowhere else: what is seen of it was made by this case."""
        self.labels = {"excise-contract": self.nonce}
        self._sandboxes = sandboxes if sandboxes is not None else Sandboxes()
        self._lent = lent
        self._shares = lent is not None
        self._patience = patience
        self._closing: list[Callable[[], Awaitable[None]]] = []

    def _place(self, *, plain: bool) -> Substrate:
        """Where the next sandbox comes from."""
        if not self._shares:
            self._sandboxes.take()
            return self.substrate
        lent, self._lent = self._lent, None
        if lent is None or not plain:
            raise NeedsOwn
        return lent

    async def sandbox(self, start: Spec | Snapshot | None = None, **changes: Any) -> Sandbox:
        """An open sandbox of the suite's spec, with these fields changed; closed at the case's end."""
        box = self.unopened(start, **changes)
        await box.open()
        return box

    def unopened(self, start: Spec | Snapshot | None = None, *, wait_s: float = CREATE_S, **changes: Any) -> Sandbox:
        """The same, before its `open`."""
        place = self._place(plain=start is None and not changes and wait_s == CREATE_S)
        if start is None:
            start = self.changed(**changes)
        wait_s, timeout_s = wait_s * self._patience, ACTION_S * self._patience
        box = Sandbox(place, start, ttl_s=LEASE_S, wait_s=wait_s, timeout_s=timeout_s, labels=self.labels)
        self._closing.append(box.close)
        return box

    def changed(self, **changes: Any) -> Spec:
        return msgspec.structs.replace(self.spec, **changes)

    async def handle(
        self,
        start: Spec | Snapshot | None = None,
        *,
        deadline_s: float = CREATE_S,
        lease_s: float = LEASE_S,
        request_id: str | None = None,
    ) -> Handle:
        """A sandbox as the substrate itself hands it out, ready; closed at the case's end."""
        handle = await self._place(plain=False).create(
            start if start is not None else self.spec,
            deadline_s=deadline_s * self._patience,
            lease_s=lease_s,
            labels=self.labels,
            request_id=request_id if request_id is not None else uuid.uuid4().hex,
        )
        self._closing.append(handle.close)
        await handle.ready()
        return handle

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this meanwhile; what is still going on at the case's end is cancelled."""
        task = asyncio.ensure_future(work)
        self._closing.append(partial(_ended, task))
        return task

    def at_end(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """Await this, too, when the case is over, before what was opened earlier is closed."""
        self._closing.append(cleanup)

    async def close(self) -> None:
        """Close everything, the latest first; one that fails to close does not keep the others open."""
        first: BaseException | None = None
        while self._closing:
            try:
                await self._closing.pop()()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below, once the rest is closed
                first = first or error
        if first is not None:
            raise first


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and see its end; how it ended was the case's to judge."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
