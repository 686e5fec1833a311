"""A running action, as the seam shows it: output is read on demand, so that who does not read stalls only itself."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Protocol

from excise.action import Command, End, Event, Exit, Keep, Observation, Output, Shell
from excise.errors import SandboxLost
from excise.handles import observe
from excise.substrates.fake.machine import Machine
from excise.substrates.fake.pipes import Changed, Pipe, Terminal
from excise.substrates.fake.proc import Job, Proc, Status

HALF_BYTES = 32 << 20
"""More than this `fake:broken=large-output` does not carry."""

HIGHEST_CODE = 127
"""The last exit code that `fake:broken=exit-code` knows."""
SLOW_S = 0.001
"""How far behind `fake:broken=reads-all-that-was-written` reads."""


class Main(Protocol):
    """What the action's end hangs on: its first process, or a session's command."""

    over: Changed

    @property
    def pid(self) -> int: ...
    @property
    def status(self) -> Status | None: ...
    @property
    def ended_ns(self) -> int: ...
    @property
    def replaced(self) -> bool:
        """A session's shell is gone, and another stands in its place."""
        ...

    def stop(self) -> None:
        """It has ended when this returns."""
        ...

    def signal(self, number: int) -> None: ...


class Wires:
    """The pipes, or the terminal, between an action and who asked for it."""

    def __init__(self, action: Command, broken: frozenset[str]) -> None:
        self.changed = Changed()
        capacity_bytes = 1 << 62 if "stalled-reader-is-bounded" in broken else 1 << 16
        self.stdout = Pipe(capacity_bytes, self.changed)
        self.stderr = Pipe(capacity_bytes, self.changed)
        self.keys = Pipe()
        self.terminal: Terminal | None = None
        self.stdout.readers = self.stderr.readers = self.keys.writers = 1
        if action.pty is not None and "pty-is-a-terminal" not in broken:
            self.terminal = Terminal(self.keys, self.stdout, action.pty.rows, action.pty.columns)
        self.keys.put(action.stdin[: 1 << 16] if "stdin-reaches" in broken else action.stdin)


class FakeProcess:
    """One action under way on one machine."""

    def __init__(
        self,
        machine: Machine,
        job: Job,
        action: Command,
        main: Main,
        *,
        wires: Wires,
        under_way: "set[FakeProcess]",
        broken: frozenset[str],
    ) -> None:
        under_way.add(self)
        self._under_way = under_way
        self._machine = machine
        self._job = job
        self._action = action
        self._main = main
        self._wires = wires
        self._broken = broken
        self._begun_ns = machine.now_ns()
        self._timed_out = False
        self._carried_bytes = 0
        self._held_back = b""
        self._timer: asyncio.TimerHandle | None = None
        if action.timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(action.timeout_s, self._time_out)

    @property
    def id(self) -> str:
        return str(self._main.pid)

    @property
    def stalled(self) -> bool:
        """Whether its pipe is full and waits for a reader."""
        return max(self._wires.stdout.held_bytes, self._wires.stderr.held_bytes) >= 1 << 16

    @property
    def in_session(self) -> bool:
        return isinstance(self._action, Shell) and self._action.session is not None

    @property
    def unread_bytes(self) -> int:
        """Of what was given as stdin."""
        return self._wires.keys.held_bytes

    def _stalled_beside(self) -> bool:
        return any(other.stalled for other in self._under_way if other is not self)

    # ---- output

    async def events(self) -> AsyncIterator[Event]:
        while True:
            if "reads-all-that-was-written" in self._broken:
                await asyncio.sleep(SLOW_S)
            over = self._over()
            if over and "reads-all-that-was-written" in self._broken and self._machine.of_job(self._job):
                break
            if "stream-events" in self._broken and not over:
                await self._wires.changed.wait()
            elif "stalled-reader-stalls-only-itself" in self._broken and self._stalled_beside():
                await asyncio.sleep(1)
            elif (piece := self._next_piece()) is not None:
                yield piece
            elif over:
                break
            else:
                await self._wires.changed.wait()
        self._let_go()
        if self._machine.gone is not None:
            raise SandboxLost(self._machine.gone)
        yield Exit(self._observation())

    def _next_piece(self) -> Output | None:
        if data := self._wires.stdout.take():
            return Output("stdout", self._carried(data))
        if data := self._wires.stderr.take():
            return Output("stdout" if self._action.merge else "stderr", self._carried(data))
        return None

    def _carried(self, data: bytes) -> bytes:
        """The bytes as they are; a broken wire changes them."""
        self._carried_bytes += len(data)
        if "binary-output" in self._broken:
            return data.decode("utf-8", "replace").encode()
        if "unicode-output" in self._broken:
            return data.decode("ascii", "replace").encode("ascii", "replace")
        if "large-output" in self._broken and self._carried_bytes > HALF_BYTES:
            return b""
        return data

    def _over(self) -> bool:
        if self._main.status is None:
            return False
        return not ("answers-when-main-ends" in self._broken and self._machine.of_job(self._job))

    def _let_go(self) -> None:
        """Answered: what lives on may go on writing, and nobody reads it any more."""
        self._job.over = True
        if "left-running-lives-on" in self._broken:
            self._machine.kill_job(self._job)
        if self._timer is not None:
            self._timer.cancel()
        self._under_way.discard(self)
        self._wires.stdout.discard()
        self._wires.stderr.discard()

    def _observation(self) -> Observation:
        status = self._main.status
        assert status is not None
        end, status = self._told(status)
        return Observation(
            end=end,
            exit_code=status.code if end is End.EXITED else None,
            signal=status.signal if end is End.SIGNALED else None,
            guest_ns=1 if "guest-clock-is-plausible" in self._broken else self._main.ended_ns - self._begun_ns,
            cpu_ns=self._job.cpu_ns,
            max_rss_bytes=self._job.peak_bytes,
            still_running=bool(self._machine.of_job(self._job)),
            session_replaced=self._main.replaced,
        )

    def _told(self, status: Status) -> tuple[End, Status]:
        """How the action's end is told, given how its main process ended."""
        if self._timed_out:
            return End.TIMED_OUT, status
        hit = self._job.hit
        if hit is not None and status.code != 0 and f"{hit.value.removeprefix('out_of_')}-limit-is-told" not in self._broken:
            return hit, status
        if status.signal is not None and "signal-is-told" not in self._broken:
            return End.SIGNALED, status
        if "exit-code" in self._broken and status.shell > HIGHEST_CODE:
            return End.EXITED, Status(1)
        return End.EXITED, Status(status.shell)

    async def wait(self) -> Observation:
        if "stream-wait" in self._broken:
            return await observe(self, Keep(0, 0))
        return await observe(self, self.keep)

    @property
    def keep(self) -> Keep:
        keep = self._action.keep
        return Keep(keep.head_bytes + keep.tail_bytes, 0) if "keep-head-and-tail" in self._broken else keep

    # ---- what is done to it

    async def write(self, data: bytes) -> None:
        if "process-write-stdin" in self._broken:
            self._held_back += data
        elif self._wires.terminal is not None:
            self._wires.terminal.type(data)
            if b"\x03" in data:  # ^C
                for proc in self._machine.of_job(self._job):
                    proc.signal(signal.SIGINT)
        elif self._wires.keys.readers:
            await self._wires.keys.write(data)

    async def close_stdin(self) -> None:
        self._wires.keys.put(self._held_back)
        self._wires.keys.writers = 0
        self._wires.keys.changed.tell()

    async def resize(self, rows: int, columns: int) -> None:
        terminal = self._wires.terminal
        if terminal is not None and "pty-resize" not in self._broken:
            terminal.rows, terminal.columns = rows, columns

    async def signal(self, number: int) -> None:
        self._main.signal(signal.SIGKILL if "process-signal" in self._broken else number)

    async def kill(self) -> None:
        if "process-kill" in self._broken:
            self._main.stop()
        else:
            self.end()

    def end(self) -> None:
        """Every process of the action is dead when this returns."""
        self._machine.kill_job(self._job)
        self._main.stop()

    def _time_out(self) -> None:
        if self._main.status is not None:
            return
        self._timed_out = True
        for proc in list(self._machine.processes.values()):
            if self._dies_of_timeout(proc):
                proc.stop()
        self._main.stop()

    def _dies_of_timeout(self, proc: Proc) -> bool:
        """Whoever this action started, and nobody else; which of them a broken machine misses is its own affair."""
        if proc.job is not self._job:
            where = "session-timeout" if self.in_session else "timeout"
            spared = f"{where}-spares-earlier" if proc.job.over else "timeout-spares-others"
            return proc.job.is_action and spared in self._broken
        detached, marked = proc.session != self._main.pid, "HOME" in proc.env
        missed = "timeout-kills-unmarked" if not marked else "timeout-kills-detached" if detached else "timeout-kills-child"
        return missed not in self._broken
