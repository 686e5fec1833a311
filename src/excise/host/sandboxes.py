"""The live sandboxes of one substrate on this machine: their directories, their owner, and what an owner left."""

import asyncio
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Generic, TypeVar

from excise.errors import CreateError
from excise.host.directories import remove
from excise.host.link import Link
from excise.requests import EndsWithItsMaker, Requests
from excise.storage.home import state_dir
from excise.substrate import Handle

_START_TIME_FIELD = 19
"""Of /proc/PID/stat, counted after the program's name: with the pid it names one process for good."""
_TO_REMOVE = 4
"""Descriptors that removing a directory takes at a time."""
_DYING_S = 10.0

H = TypeVar("H", bound=Handle)


class Sandboxes(Generic[H]):
    """Hands out directories named after their owner, and each request's sandbox once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.link = Link()
        self._requests = Requests[H](kind)

    async def once(self, request_id: str, deadline_s: float, make: Callable[[Path], Awaitable[H]]) -> H:
        """The sandbox of `request_id`, made now unless it already is. A caller who gives up leaves none behind."""
        return await self._requests.once(request_id, deadline_s, lambda: self._make(make))

    async def _make(self, make: Callable[[Path], Awaitable[H]]) -> H:
        directory = self.place()
        with ExitStack() as spare:
            try:
                for _ in range(_TO_REMOVE):  # or what was made could not be looked into, and would be left
                    spare.callback(os.close, os.open("/", os.O_PATH | os.O_CLOEXEC))
                directory.mkdir(mode=0o700)
                return await make(directory)
            except BaseException as error:
                spare.close()
                remove(str(directory))
                if isinstance(error, OSError):
                    raise CreateError(f"no sandbox could be made in {directory.parent}: {error.strerror}") from None
                raise

    def place(self) -> Path:
        """A directory that is not there yet, named after its owner: whoever makes it removes it, or `collect` does."""
        return state_dir() / f"{self._kind}-{owner_of(os.getpid())}-{uuid.uuid4().hex[:12]}"

    def forget(self, handle: H) -> None:
        """A closed sandbox's request may be made anew."""
        self._requests.forget(handle)

    async def collect(self, before: Callable[[Path], Awaitable[None]] | None = None) -> tuple[str, ...]:
        """Remove the directories of owners that are gone, after `before`. Their processes go with them, if not at once."""
        removed: list[str] = []
        named = re.compile(rf"{re.escape(self._kind)}-((\d+)-\d+)-[0-9a-f]{{12}}")
        for directory in sorted(state_dir().iterdir()):
            name = named.fullmatch(directory.name)
            if name is not None and name[1] != owner_of(int(name[2])):
                if before is not None:
                    await asyncio.to_thread(_wait_until_left, str(directory))
                    await before(directory)
                await asyncio.to_thread(remove, str(directory))
                removed.append(directory.name)
        return tuple(removed)

    async def close(self) -> None:
        await self._requests.close()
        await self.link.close()


class OnThisMachine(EndsWithItsMaker[H]):
    """A substrate whose sandboxes are directories and processes here."""

    _sandboxes: Sandboxes[H]

    async def collect(self) -> tuple[str, ...]:
        return await self._sandboxes.collect()

    async def close(self) -> None:
        await self._sandboxes.close()


def _wait_until_left(directory: str) -> None:
    """Until no process works in `directory`: what is still being started there would outlive the end of the rest."""
    last = time.monotonic() + _DYING_S
    while _is_worked_in(directory) and time.monotonic() < last:
        time.sleep(0.02)


def _is_worked_in(directory: str) -> bool:
    for process in os.listdir("/proc"):
        if process.isdigit():
            with suppress(OSError):  # it ended while we looked, or is another user's
                if Path(os.readlink(f"/proc/{process}/cwd")).is_relative_to(directory):
                    return True
    return False


def owner_of(pid: int) -> str:
    """A name for the process `pid` that no later process of the same number shares; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}-{text.rpartition(')')[2].split()[_START_TIME_FIELD]}"
