"""Sessions: a shell process that stays, and runs one command after another."""

import asyncio
import signal

from excise.action import Shell as ShellAction
from excise.errors import SandboxLost, SpecError
from excise.substrates.fake.builtins import new_shell
from excise.substrates.fake.pipes import Changed
from excise.substrates.fake.proc import Descriptors, Job, Proc, Status
from excise.substrates.fake.shell import Shell
from excise.substrates.fake.shell_state import Leave
from excise.substrates.fake.special import open_path

KILLED = Status(None, signal.SIGKILL)


def refuse_options(action: ShellAction) -> None:
    """A session has a directory, variables and a user of its own; an action cannot bring others."""
    asked = {"cwd": action.cwd, "env": action.env, "stdin": action.stdin, "user": action.user, "pty": action.pty}
    given = [name for name, value in asked.items() if value]
    if given:
        raise SpecError(f"a session's action takes no {', '.join(given)}: use cd, export or a redirection inside the script")


class Session:
    """A name, the shell that stands behind it now, and who waits for a turn on it."""

    def __init__(self, broken: frozenset[str]) -> None:
        self.broken = broken
        self.shell: SessionShell | None = None
        self.lost_unseen = False
        """The shell died between two commands; the next one must say so."""
        self._busy = False
        self._waiting: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        """Wait until it is one's turn; who asked first has it first."""
        if not self._busy:
            self._busy = True
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:
                self.give_turn()  # it came at the same moment, and is passed on
            raise

    def give_turn(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting.pop(-1 if "session-in-order" in self.broken else 0).set_result(None)

    def abandon(self, reason: str) -> None:
        """Nobody who waits will have a turn."""
        waiting, self._waiting = self._waiting, []
        for mine in waiting:
            mine.set_exception(SandboxLost(reason))


class SessionShell:
    """One shell process of a session, and the script it runs now."""

    def __init__(self) -> None:
        self._proc: Proc | None = None
        self._shell: Shell | None = None
        self._wanted: SessionCommand | None = None
        self._running: asyncio.Task[int] | None = None
        self._arrived = Changed()

    @property
    def proc(self) -> Proc:
        assert self._proc is not None
        return self._proc

    def exported(self) -> dict[str, str]:
        """The variables its children see."""
        assert self._shell is not None
        memory = self._shell.memory
        return {name: memory.variables[name] for name in memory.exported if name in memory.variables}

    def attach(self, proc: Proc) -> None:
        self._proc = proc
        self._shell = new_shell(proc)

    async def live(self, proc: Proc) -> int:
        """The process's body: commands, until one of them leaves."""
        while True:
            while self._wanted is None:
                await self._arrived.wait()
            command, self._wanted = self._wanted, None
            try:
                code = await self._run(proc, command)
            except Leave as leaving:
                return leaving.code
            command.finish(Status(command.told(code) & 0xFF))

    def begin(self, command: "SessionCommand") -> None:
        self._wanted = command
        self._arrived.tell()

    async def _run(self, proc: Proc, command: "SessionCommand") -> int:
        proc.children_job = command.job
        for number in (0, 1, 2):
            proc.files.put(number, command.files.get(number))
        if "session-status-unforgeable" in command.broken:
            proc.files.put(3, StatusWire(command))
        # A task of its own, so that a timeout can interrupt the script and leave the shell standing.
        self._running = proc.machine.track(asyncio.create_task(self._script(proc, command)))
        try:
            await asyncio.wait({self._running})
        finally:
            self._running.cancel()
            if proc.status is None:
                for number in (0, 1, 2):
                    proc.files.put(number, open_path(proc, "/dev/null"))
                proc.children_job = proc.job
        return 130 if self._running.cancelled() else self._running.result()

    async def _script(self, proc: Proc, command: "SessionCommand") -> int:
        assert self._shell is not None
        await proc.sleep(command.guest_s)
        return await self._shell.run(command.script)

    @property
    def stuck(self) -> bool:
        """Whether the shell would not heed an interrupt."""
        proc = self.proc
        replaced = self._shell is not None and self._shell.replaced
        return proc.stopped or replaced or signal.SIGINT in proc.ignored

    def interrupt(self) -> None:
        if self._running is not None:
            self._running.cancel()


class SessionCommand:
    """One script in a session's shell. It plays the part of an action's main process."""

    def __init__(self, session: Session, script: str, job: Job, files: Descriptors, over: Changed) -> None:
        assert session.shell is not None
        self._session = session
        self._shell = session.shell
        self._proc = session.shell.proc
        self.script = script
        self.job = job
        self.files = files
        self.over = over
        self.status: Status | None = None
        self.ended_ns = 0
        self.guest_s = 0.0
        self.forged: int | None = None
        self.replaced = session.lost_unseen
        session.lost_unseen = False
        self._watch = self._proc.machine.track(asyncio.create_task(self._see_shell_end()))

    @property
    def pid(self) -> int:
        return self._proc.pid

    def begin(self, guest_s: float) -> None:
        self.guest_s = guest_s
        self._shell.begin(self)

    @property
    def broken(self) -> frozenset[str]:
        return self._session.broken

    def told(self, code: int) -> int:
        """The script's status; a broken session believes others, or nobody."""
        if "session-status-exact" in self.broken:
            return 0
        return code if self.forged is None else self.forged

    async def _see_shell_end(self) -> None:
        status = await self._proc.wait()
        self.replaced = self.status is None and "session-exit-is-told" not in self._session.broken
        self._session.shell = None
        self.finish(status)

    def stop(self) -> None:
        """Interrupt the script; a shell that would not heed that is killed, and another will take its place."""
        if self.status is not None:
            return
        keeps = "session-stuck-shell-replaced" not in self._session.broken
        loses = "session-timeout-keeps-shell" in self._session.broken
        if loses or (self._shell.stuck and keeps):
            self.replaced = True
            self._session.shell = None
            self._proc.machine.end(self._proc, KILLED)
            self.finish(KILLED)
        else:
            self._shell.interrupt()
            self.finish(Status(130))

    def signal(self, number: int) -> None:
        """To what the shell runs; to the shell itself if there is nothing else."""
        machine = self._proc.machine
        for proc in machine.of_job(self.job) or [self._proc]:
            machine.signal(proc, number)

    def finish(self, status: Status) -> None:
        if self.status is None:
            self.status = status
            self.ended_ns = self._proc.machine.now_ns()
            self.files.close()
            self._watch.cancel()
            self._session.give_turn()
            self.over.tell()


class StatusWire:
    """What `fake:broken=session-status-unforgeable` hands to every child: write a status here and it is believed."""

    def __init__(self, command: SessionCommand) -> None:
        self.holders = 0
        self._command = command

    async def read(self, most_bytes: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        self._command.forged = int(data)

    def closed(self) -> None:
        """Nothing to let go."""
