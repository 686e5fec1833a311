"""A running action: an exec of the engine's, with the wrapping shell's marks taken out of its output."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Literal

from excise.action import Command, End, Event, Exec, Exit, Observation, Output
from excise.errors import SandboxLost, SpecError
from excise.guestless.inside import STDERR, Inside, Wire
from excise.guestless.kill import kill, send
from excise.guestless.wrapper import SIGNALLED, Began, Counts, Stream, Wrapped, wrap
from excise.handles import finish, observe
from excise.substrate import Process

_KILLED = 137
_BEGIN_S = 30.0


class GuestlessProcess:
    """A `Process`. Its connection is read only when the consumer asks: who does not read stalls this producer."""

    def __init__(self, inside: Inside, action: Command, wrapped: Wrapped) -> None:
        self._inside = inside
        self._action = action
        self._wrapped = wrapped
        self._streams = {"stdout": Stream(wrapped, "stdout"), "stderr": Stream(wrapped, "stderr")}
        self._ready: deque[Output] = deque()
        self._exit: Observation | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._feeding: asyncio.Task[None] | None = None
        self.alone = True
        """No other action was in flight at any time since this one began."""
        self._wire: Wire | None = None

    @property
    def id(self) -> str:
        return self._wire.id if self._wire is not None else ""

    @property
    def _open_wire(self) -> Wire:
        assert self._wire is not None, "the process has not begun"
        return self._wire

    # ---- its beginning

    async def begin(self, env: dict[str, str]) -> None:
        """Start it and return once it has begun. Cancelled meanwhile, it is dead before the cancellation goes on."""
        self._enter()
        starting = asyncio.ensure_future(self._open(env))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await finish(self._abandon(starting))
            raise
        except BaseException:
            self.release()
            raise
        if self._action.timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._action.timeout_s), self._expire)

    def _enter(self) -> None:
        for other in self._inside.live:
            other.alone = self.alone = False
        self._inside.live.add(self)

    async def _open(self, env: dict[str, str]) -> None:
        pty = self._action.pty
        self._wire = await self._inside.open(self._wrapped, env=env, user=self._action.user or "", terminal=pty is not None)
        if pty is not None:
            await self.resize(pty.rows, pty.columns)  # the shell still waits for its key: the program finds the size set
        data = self._wrapped.preamble + self._action.stdin
        if len(data) < 1 << 16:
            await self._feed(data)
        else:
            self._feeding = asyncio.create_task(self._feed(data))
        while self._began is None and await self._read():
            pass

    async def _feed(self, data: bytes) -> None:
        try:
            await self._open_wire.write(data)
            if self._action.stdin and self._action.pty is None and self._open_wire.half_closes:
                await self._open_wire.close_stdin()
        except BrokenPipeError:
            return  # it ended without having read it all

    async def _abandon(self, starting: "asyncio.Future[None]") -> None:
        """What is being started can only be killed once it is there; an engine that never starts it leaves nothing to kill."""
        try:
            await asyncio.wait_for(starting, _BEGIN_S)
            await self.kill()
        except (SandboxLost, TimeoutError):
            pass  # then nothing of it is left either
        finally:
            self.release()

    @property
    def _began(self) -> Began | None:
        return self._streams["stdout"].began

    # ---- its output

    async def events(self) -> AsyncIterator[Event]:
        while self._ready or (self._exit is None and await self._read()):
            while self._ready:
                yield self._ready.popleft()
        if self._exit is None:
            self._exit = await self._ending()
            self.release()
            while self._ready:
                yield self._ready.popleft()
            yield Exit(self._exit)

    async def _read(self) -> bool:
        """Take one frame in; False once nothing more of the action will come."""
        if all(stream.done for stream in self._streams.values()):
            return False
        frame = await self._open_wire.frame()
        if frame is None:
            for name in ("stdout", "stderr"):
                self._put(name, self._streams[name].rest())
            return False
        name = "stderr" if frame[0] == STDERR else "stdout"
        self._put(name, self._streams[name].feed(frame[1]))
        return True

    def _put(self, name: Literal["stdout", "stderr"], data: bytes) -> None:
        if data:
            self._ready.append(Output(name, data))

    async def wait(self) -> Observation:
        return self._exit if self._exit is not None else await observe(self, self._action.keep)

    # ---- its end

    async def _ending(self) -> Observation:
        if self._timer is not None:
            self._timer.cancel()
        if self._expiring is not None:
            await self._expiring
            return Observation(end=End.TIMED_OUT, exit_code=None)
        if self._inside.closed:
            raise SandboxLost("the sandbox was closed while the action ran")
        ended = self._streams["stdout"].ended
        if ended is not None:
            end = self._end(ended.exit_code, ended.counts)
            return Observation(end=end, exit_code=ended.exit_code, still_running=ended.still_running)
        if self._began is None:
            return await self._never_began()
        code = self._open_wire.exit_code
        if code is not None and code < SIGNALLED:
            raise await self._inside.lost(f"the action ended with code {code}, and the end of its output was lost on the way")
        # The wrapping shell shrugs off every signal it can: without a last word it was killed, or the container was.
        return Observation(end=self._end(_KILLED, await self._inside.counts()), exit_code=_KILLED)

    def _end(self, exit_code: int, after: Counts) -> End:
        """A failure while a limit struck is the limit's doing, as far as one can tell from outside."""
        before = self._began.counts if self._began is not None else Counts()
        if exit_code == _KILLED and after.oom_kill > before.oom_kill:
            return End.OUT_OF_MEMORY
        return End.OUT_OF_PIDS if exit_code and after.max > before.max else End.EXITED

    async def _never_began(self) -> Observation:
        said = self._streams["stdout"].prologue.decode("utf-8", "replace").strip()
        if any(fault in said for fault in self._inside.callers_fault):
            self._put("stderr", f"{said}\n".encode())
            return Observation(exit_code=126)
        raise await self._inside.lost(f"the action could not be started: {said or 'the engine hung up'}")

    def _expire(self) -> None:
        self._expiring = asyncio.create_task(self._kill_expired())

    async def _kill_expired(self) -> None:
        try:
            await self.kill()
        except BaseException:
            self._open_wire.close()  # whoever reads must wake up, and hears of it
            raise

    async def kill(self) -> None:
        began = self._began
        if self._inside.closed or began is None:
            return
        await finish(
            kill(
                self._inside.run_inline,
                self._wrapped.nonce,
                since_ticks=began.start_ticks,
                alone=self.alone,
                wrapper_pid=began.pid,
                run_as_user=partial(self._inside.run_inline, user=self._action.user or ""),
            )
        )

    def release(self) -> None:
        """Let go of the connection; what the action left running does not notice."""
        self._inside.live.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        if self._wire is not None:
            self._wire.close()

    async def settled(self) -> None:
        """Return once nothing of it is under way on our side: its sandbox is gone."""
        self.release()
        under_way = [task for task in (self._expiring, self._feeding) if task is not None]
        if under_way:
            await asyncio.wait(under_way)

    # ---- talking to it

    async def write(self, data: bytes) -> None:
        await self._open_wire.write(data)

    async def close_stdin(self) -> None:
        await self._open_wire.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        if self._action.pty is None:
            raise SpecError("only an action with pty= has a terminal to resize")
        await self._open_wire.resize(rows, columns)

    async def signal(self, number: int) -> None:
        if self._exit is None and self._began is not None:
            await send(self._inside.run_inline, self._began.pid, number)


async def killed(process: Process) -> None:
    """Kill what is being given up; if the sandbox is lost, nothing of it is left either."""
    try:
        await process.kill()
    except SandboxLost:
        return


def wrapped(action: Command, *, interactive: bool, half_closes: bool, limited: bool) -> Wrapped:
    """The action's program in the wrapping shell."""
    argv = action.argv if isinstance(action, Exec) else ("sh", "-c", action.script)
    terminal = action.pty is not None
    stdin: Literal["open", "closed"] | int = "open" if terminal or interactive or action.stdin else "closed"
    if action.stdin and not terminal and not half_closes:
        stdin = len(action.stdin)
    return wrap(argv, cwd=action.cwd, stdin=stdin, apart=not terminal and not action.merge, limited=limited)
