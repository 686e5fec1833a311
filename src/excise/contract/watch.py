"""How a case looks into a sandbox: with actions and events, never by the clock on the wall."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from excise.action import End, Event, Exec, Exit, Observation, Output
from excise.contract import scripts
from excise.contract.case import broken, expect, succeeded, told
from excise.sandbox import Sandbox
from excise.substrate import Process

TIMEOUTS_S = (1.0, 4.0, 16.0)
_TURNS = 5
PATIENCE_NAPS = 50
"""For a process that beats fifty times a second: five hundred beats."""


def sh(script: str, *arguments: str, **common: Any) -> Exec:
    """`script` with positional parameters."""
    return Exec(("sh", "-c", script, "sh", *arguments), **common)


async def size_bytes(box: Sandbox, path: str) -> int:
    """A file's size; nothing there counts as empty."""
    try:
        return (await box.stat(path)).size_bytes
    except FileNotFoundError:
        return 0


async def nap(box: Sandbox) -> None:
    """Let time pass inside: ten beats' worth."""
    succeeded(await box.run(scripts.NAP), "`sleep`")


async def exists(box: Sandbox, path: str) -> bool:
    try:
        await box.stat(path)
    except FileNotFoundError:
        return False
    return True


async def beating(box: Sandbox, who: str, path: str = "beat") -> None:
    """Return once the file grew: who writes it is alive."""
    before = await size_bytes(box, path)
    for _ in range(PATIENCE_NAPS):
        await nap(box)
        if await size_bytes(box, path) > before:
            return
    broken(f"{who} is not alive")


async def silent(box: Sandbox, who: str, path: str = "beat") -> None:
    """The file exists and grows no more: who wrote it is dead."""
    before = await size_bytes(box, path)
    expect(before > 0, f"{who} never started")
    await nap(box)
    await nap(box)
    expect(await size_bytes(box, path) == before, f"{who} is still alive")


async def time_out(box: Sandbox, script: str, *, session: str | None = None, path: str = "beat") -> Observation:
    """Let a script that beats run into a timeout; on a busy machine a longer one, so that it has begun to beat."""
    seen = await _timed_out(box, script, TIMEOUTS_S[0], session)
    for timeout_s in TIMEOUTS_S[1:]:
        if await exists(box, path):
            break
        seen = await _timed_out(box, script, timeout_s, session)
    return seen


async def _timed_out(box: Sandbox, script: str, timeout_s: float, session: str | None) -> Observation:
    seen = await box.run(script, timeout_s=timeout_s, session=session)
    expect(seen.end is End.TIMED_OUT, f"an action that outlasts its timeout is told as {told(seen)}")
    return seen


async def workdir(box: Sandbox) -> str:
    seen = await box.run(scripts.PRINT_WORKDIR)
    succeeded(seen, "`pwd`")
    return seen.stdout.decode().removesuffix("\n")


class Reader:
    """A process's events, read a little at a time."""

    def __init__(self, process: Process) -> None:
        self._events: AsyncIterator[Event] = process.events()
        self._pending: asyncio.Future[Event | None] | None = None
        self.stdout = b""
        self.stderr = b""
        self.exit: Observation | None = None

    async def next(self, within_s: float | None = None) -> Event:
        """The next event, its bytes noted; TimeoutError, with nothing lost, if it does not come in time."""
        expect(self.exit is None, "events went on after the exit")
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._events, None))
            # A case that fails may never look at it, which is no news of its own.
            self._pending.add_done_callback(lambda event: event.cancelled() or event.exception())
        done, _ = await asyncio.wait({self._pending}, timeout=within_s)
        if not done:
            raise TimeoutError
        pending, self._pending = self._pending, None
        event = pending.result()
        if event is None:
            broken("the events ended without an exit")
        match event:
            case Output("stdout", data):
                self.stdout += data
            case Output(_, data):
                self.stderr += data
            case Exit(observation):
                self.exit = observation
        return event

    async def until(self, text: bytes) -> None:
        """Read on until stdout holds `text`."""
        while text not in self.stdout:
            await self.next()
            expect(self.exit is None or text in self.stdout, f"the process ended without having written {text!r}")

    async def to_exit(self) -> Observation:
        """Read to the exit; nothing may come after it."""
        while self.exit is None:
            await self.next()
        expect(await anext(self._events, None) is None, "an event came after the exit")
        return self.exit


class HostMarks(msgspec.Struct, frozen=True):
    """What this very process holds: a leak of a local substrate shows here."""

    descriptors: int
    children: frozenset[str]


def host_marks() -> HostMarks:
    me = Path("/proc/self")
    children = (word for task in (me / "task").iterdir() for word in _words(task / "children"))
    return HostMarks(len(os.listdir(me / "fd")), frozenset(children))  # noqa: PTH208 - names are enough, and cheaper


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []  # a thread that ended meanwhile, or a kernel without this file


async def expect_no_growth(rounds: Callable[[], Awaitable[int]]) -> None:
    """Connections may be kept for later use, so a few descriptors more are fine; one for every other round is a leak.

    So is what grows each time: a pool fills its shelf and stops, a leak goes on. `rounds` says how many it ran.
    """
    reason = ""
    for _ in range(_TURNS):
        before = host_marks()
        reason = _grown(before, await rounds())
        if not reason:
            return
    broken(reason)


def _grown(before: HostMarks, rounds: int) -> str:
    after = host_marks()
    more, stray = after.descriptors - before.descriptors, after.children - before.children
    if more >= max(rounds // 2, 2):
        return f"{more} descriptors are left open after {rounds} rounds"
    return f"{len(stray)} child processes are left behind after {rounds} rounds" if stray else ""
