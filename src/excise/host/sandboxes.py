"""The live sandboxes of one substrate on this machine: their directories, their owner, and what an owner left."""

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar

from excise.errors import CreateError
from excise.handles import finish
from excise.host.link import Link
from excise.storage.home import state_dir
from excise.substrate import Handle

_START_TIME_FIELD = 19
"""Of /proc/PID/stat, counted after the program's name: with the pid it names one process for good."""


H = TypeVar("H", bound=Handle)


class Sandboxes(Generic[H]):
    """Hands out directories named after their owner, and each request's sandbox once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.link = Link()
        self._by_request: dict[str, asyncio.Task[H]] = {}

    async def once(self, request_id: str, deadline_s: float, make: Callable[[Path], Awaitable[H]]) -> H:
        """The sandbox of `request_id`, made now unless it already is. A caller who gives up leaves none behind."""
        making = self._by_request.get(request_id)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = self._by_request[request_id] = asyncio.ensure_future(self._make(make))
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(making)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._by_request.pop(request_id, None)
            await finish(_undo(making))
            if isinstance(error, TimeoutError):
                raise CreateError(f"{self._kind} made no sandbox in {deadline_s:g} s") from None
            raise

    async def _make(self, make: Callable[[Path], Awaitable[H]]) -> H:
        directory = state_dir() / f"{self._kind}-{owner_of(os.getpid())}-{uuid.uuid4().hex[:12]}"
        try:
            directory.mkdir(mode=0o700)
            return await make(directory)
        except BaseException as error:
            with contextlib.suppress(OSError):
                directory.rmdir()
            if isinstance(error, OSError):
                raise CreateError(f"no sandbox could be made in {directory.parent}: {error.strerror}") from None
            raise

    def forget(self, handle: H) -> None:
        """A closed sandbox's request may be made anew."""
        for request_id, making in tuple(self._by_request.items()):
            if making.done() and not making.cancelled() and making.exception() is None and making.result() is handle:
                del self._by_request[request_id]

    async def collect(self, before: Callable[[Path], Awaitable[None]] | None = None) -> tuple[str, ...]:
        """Remove the directories of owners that are gone, after `before`. Their processes went with them."""
        removed: list[str] = []
        for directory in state_dir().glob(f"{self._kind}-*-*-*"):
            owner = directory.name.removeprefix(f"{self._kind}-").rpartition("-")[0]
            if owner != owner_of(int(owner.partition("-")[0])):
                if before is not None:
                    await before(directory)
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                removed.append(directory.name)
        return tuple(removed)

    async def close(self) -> None:
        making, self._by_request = self._by_request, {}
        for task in making.values():
            await _undo(task)
        await self.link.close()


async def _undo(making: "asyncio.Task[H]") -> None:
    """Close what was made, or wait until its making has failed."""
    making.cancel()
    with contextlib.suppress(BaseException):
        handle = await making
        await handle.close()


def owner_of(pid: int) -> str:
    """A name for the process `pid` that no later process of the same number shares; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}-{text.rpartition(')')[2].split()[_START_TIME_FIELD]}"
