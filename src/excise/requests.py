"""Each request's sandbox, made once, however often it is asked for; for substrates whose sandboxes end with their maker."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from excise.errors import CreateError
from excise.handles import finish
from excise.substrate import Handle, Listed, Snapshot, unsupported

H = TypeVar("H", bound=Handle)


class _Making(Generic[H]):
    """A sandbox on its way to those who asked for it."""

    def __init__(self, task: asyncio.Task[H]) -> None:
        self.task = task
        self.waiting = 0
        self.delivered = False

    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    async def undo(self) -> None:
        """Close what was made, or wait until its making has failed."""
        self.task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            handle = await self.task
            await handle.close()


def _is_cancelled() -> bool:
    """Whether it is our own task that somebody cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Requests(Generic[H]):
    """What was asked of one substrate, by request_id."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._by_id: dict[str, _Making[H]] = {}
        self._ids: dict[int, str] = {}
        """By the handle's identity: a closed one of thousands is forgotten without a search."""

    async def once(self, request_id: str, deadline_s: float, make: Callable[[], Awaitable[H]]) -> H:
        """The sandbox of `request_id`, made now unless it already is. A caller who gives up leaves none behind."""
        making = self._by_id.get(request_id)
        if making is None or making.failed():
            making = self._by_id[request_id] = _Making(asyncio.ensure_future(self._made(request_id, make)))
        making.waiting += 1
        try:
            async with asyncio.timeout(deadline_s):
                handle = await asyncio.shield(making.task)
            making.delivered = True
            return handle
        except (TimeoutError, asyncio.CancelledError) as error:
            if making.waiting == 1 and not making.delivered:  # nobody else wants it
                self._by_id.pop(request_id, None)
                await finish(making.undo())
            if isinstance(error, TimeoutError):
                raise CreateError(f"{self._address} made no sandbox in {deadline_s:g} s") from None
            if not _is_cancelled():  # then its making was
                raise CreateError(f"{self._address} was closed while it made this sandbox; connect to it again") from None
            raise
        finally:
            making.waiting -= 1

    async def _made(self, request_id: str, make: Callable[[], Awaitable[H]]) -> H:
        handle = await make()
        self._ids[id(handle)] = request_id
        return handle

    def forget(self, handle: H) -> None:
        """A closed sandbox's request may be made anew."""
        request_id = self._ids.pop(id(handle), None)
        if request_id is None:
            return
        making = self._by_id.get(request_id)
        if making is not None and making.task.done() and not making.failed() and making.task.result() is handle:
            del self._by_id[request_id]

    async def close(self) -> None:
        """Close every sandbox, made or in the making."""
        makings, self._by_id = self._by_id, {}
        for making in makings.values():
            await making.undo()


class EndsWithItsMaker(Generic[H]):
    """What a substrate has not whose sandboxes die with the process that made them."""

    address: str

    async def attach(self, id: str) -> H:
        raise unsupported(self.address, f"attach({id!r}): its sandboxes end with the process that made them")

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        raise unsupported(self.address, "list: its sandboxes end with the process that made them")

    async def snapshots(self) -> tuple[Snapshot, ...]:
        raise unsupported(self.address, "snapshots")

    async def discard(self, snapshot: Snapshot) -> None:
        raise unsupported(self.address, "snapshots")
