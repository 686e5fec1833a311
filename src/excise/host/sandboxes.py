"""The live sandboxes of one substrate on this machine: their directories, their owner, and what an owner left."""

import asyncio
import contextlib
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from excise.errors import CreateError
from excise.handles import finish
from excise.host.directories import remove
from excise.host.link import Link
from excise.storage.home import state_dir
from excise.substrate import Handle, Listed, Snapshot, unsupported

_START_TIME_FIELD = 19
"""Of /proc/PID/stat, counted after the program's name: with the pid it names one process for good."""


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


class Sandboxes(Generic[H]):
    """Hands out directories named after their owner, and each request's sandbox once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.link = Link()
        self._by_request: dict[str, _Making[H]] = {}

    async def once(self, request_id: str, deadline_s: float, make: Callable[[Path], Awaitable[H]]) -> H:
        """The sandbox of `request_id`, made now unless it already is. A caller who gives up leaves none behind."""
        making = self._by_request.get(request_id)
        if making is None or making.failed():
            making = self._by_request[request_id] = _Making(asyncio.ensure_future(self._make(make)))
        making.waiting += 1
        try:
            async with asyncio.timeout(deadline_s):
                handle = await asyncio.shield(making.task)
            making.delivered = True
            return handle
        except (TimeoutError, asyncio.CancelledError) as error:
            if making.waiting == 1 and not making.delivered:  # nobody else wants it
                self._by_request.pop(request_id, None)
                await finish(making.undo())
            if isinstance(error, TimeoutError):
                raise CreateError(f"{self._kind} made no sandbox in {deadline_s:g} s") from None
            raise
        finally:
            making.waiting -= 1

    async def _make(self, make: Callable[[Path], Awaitable[H]]) -> H:
        directory = state_dir() / f"{self._kind}-{owner_of(os.getpid())}-{uuid.uuid4().hex[:12]}"
        try:
            directory.mkdir(mode=0o700)
            return await make(directory)
        except BaseException as error:
            remove(str(directory))
            if isinstance(error, OSError):
                raise CreateError(f"no sandbox could be made in {directory.parent}: {error.strerror}") from None
            raise

    def forget(self, handle: H) -> None:
        """A closed sandbox's request may be made anew."""
        for request_id, making in tuple(self._by_request.items()):
            if making.task.done() and not making.failed() and making.task.result() is handle:
                del self._by_request[request_id]

    async def collect(self, before: Callable[[Path], Awaitable[None]] | None = None) -> tuple[str, ...]:
        """Remove the directories of owners that are gone, after `before`. Their processes went with them."""
        removed: list[str] = []
        named = re.compile(rf"{re.escape(self._kind)}-((\d+)-\d+)-[0-9a-f]{{12}}")
        for directory in sorted(state_dir().iterdir()):
            name = named.fullmatch(directory.name)
            if name is not None and name[1] != owner_of(int(name[2])):
                if before is not None:
                    await before(directory)
                await asyncio.to_thread(remove, str(directory))
                removed.append(directory.name)
        return tuple(removed)

    async def close(self) -> None:
        making, self._by_request = self._by_request, {}
        for one in making.values():
            await one.undo()
        await self.link.close()


class EndsWithItsMaker(Generic[H]):
    """What a substrate has, and has not, whose sandboxes die with the process that made them."""

    address: str
    _sandboxes: Sandboxes[H]

    async def attach(self, id: str) -> H:
        raise unsupported(self.address, f"attach({id!r}): its sandboxes end with the process that made them")

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        raise unsupported(self.address, "list: its sandboxes end with the process that made them")

    async def discard(self, snapshot: Snapshot) -> None:
        raise unsupported(self.address, "snapshots")

    async def collect(self) -> tuple[str, ...]:
        return await self._sandboxes.collect()

    async def close(self) -> None:
        await self._sandboxes.close()


def owner_of(pid: int) -> str:
    """A name for the process `pid` that no later process of the same number shares; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}-{text.rpartition(')')[2].split()[_START_TIME_FIELD]}"
