"""Actions as commands of this machine, where ending the command ends all that it started."""

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from excise.action import Command, End, Event, Exit, Observation
from excise.errors import SandboxLost
from excise.guestless.actions import ByExec
from excise.handles import observe
from excise.host.process import HostProcess


class DirectProcess:
    """A `Process` whose program runs behind the command that was started for it."""

    def __init__(self, process: HostProcess, action: Command, *, depth: int, closing: Callable[[], bool]) -> None:
        self.id = process.id
        self._process = process
        self._action = action
        self._depth = depth
        self._closing = closing
        self._ended: Observation | None = None

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._process.events():
            if isinstance(event, Exit):
                self._ended = self._outcome(event.observation)
                yield Exit(self._ended)
            else:
                yield event

    def _outcome(self, seen: Observation) -> Observation:
        """What our runner measured is the command around the program, not the program: it is left out."""
        if self._closing():
            raise SandboxLost("the sandbox was closed under this action")
        killed = seen.end is End.SIGNALED
        return msgspec.structs.replace(
            seen,
            end=End.EXITED if killed else seen.end,
            exit_code=128 + (seen.signal or 0) if killed else seen.exit_code,
            signal=None,
            guest_ns=None,
            cpu_ns=None,
            max_rss_bytes=None,
            still_running=False,
        )

    async def wait(self) -> Observation:
        return self._ended if self._ended is not None else await observe(self, self._action.keep)

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        await self._process.resize(rows, columns)

    async def signal(self, number: int) -> None:
        await self._process.signal(number, self._depth)

    async def kill(self) -> None:
        await self._process.kill()

    def release(self) -> None:
        self._process.release()


Begin = Callable[[Command, bool], Awaitable[HostProcess]]


class DirectActions(ByExec):
    """Without a shell of ours inside; `begin` starts the command for an action."""

    def __init__(self, begin: Begin, *, depth: int) -> None:
        self._begin = begin
        self._depth = depth
        self._closed = False

    async def start(self, action: Command, *, interactive: bool = True) -> DirectProcess:
        process = await self._begin(action, interactive)
        return DirectProcess(process, action, depth=self._depth, closing=lambda: self._closed)

    def let_go(self) -> tuple[()]:
        """The sandbox is being closed: actions in flight end as lost."""
        self._closed = True
        return ()
