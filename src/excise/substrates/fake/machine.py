"""A pretend kernel: processes that are asyncio tasks, signals, limits, and the file tree they share.

A process is dead the moment `end` returns; its task is unwound after that and can touch nothing any more.
"""

import asyncio
import errno
import secrets
import signal
from collections.abc import Mapping
from random import Random
from typing import Any, Protocol, TypeVar

from excise.action import End
from excise.spec import Allow, Limits, Network
from excise.substrates.fake.files import File, Tree, Who, refusal
from excise.substrates.fake.pipes import Changed, Pipe
from excise.substrates.fake.proc import Body, Descriptors, Job, Proc, Program, Status

T = TypeVar("T")
_HARMLESS = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
_STOPPING = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Port(Protocol):
    """Where a process listens."""

    @property
    def proc(self) -> Proc: ...
    def call(self) -> tuple[Pipe, Pipe]:
        """A connection: what the caller writes to, and what it reads from."""
        ...


class Machine:
    """One sandbox's inside: a file tree and a process table."""

    def __init__(
        self,
        tree: Tree,
        limits: Limits,
        programs: Mapping[str, Program],
        namespace: int = 0,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.tree = tree
        self.broken = broken
        self.neighbours: tuple[Machine, ...] = ()
        """Other machines, whose processes a broken one sees."""
        self.programs = programs
        self.namespace = namespace
        """Stands for every namespace's number: two machines with the same one would share what is in it."""
        self.network: Network = "none"
        """What of other hosts can be reached now."""
        self.limits = limits
        self.paused = False
        self.gone: str | None = None
        """Why there is no such machine any more; nothing it says after that is an answer."""
        self.changed = Changed()
        self.processes: dict[int, Proc] = {}
        self.ports: dict[int, Port] = {}
        self.random = Random(secrets.randbits(128))  # noqa: S311 - a pretend kernel's
        self.boot_id = secrets.token_hex(16)
        self._next_pid = 2
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- processes

    def spawn(
        self, body: Body, *, files: Descriptors, parent: Proc | None = None, job: Job | None = None, own_session: bool = False
    ) -> Proc:
        """Start a process: `body` runs in it. Beyond the limit of processes it is EAGAIN, as fork(2) says."""
        job = job or (parent.children_job if parent else Job())
        if self.limits.pids is not None and len(self.processes) >= self.limits.pids:
            files.close()
            job.hit = End.OUT_OF_PIDS
            raise refusal(errno.EAGAIN)
        proc = Proc(self, self._next_pid, parent.pid if parent else 1, job, files)
        self._next_pid += 1
        if parent is not None:
            proc.who, proc.cwd, proc.env, proc.umask = parent.who, parent.cwd, dict(parent.env), parent.umask
            proc.ignored, proc.argv = set(parent.ignored), list(parent.argv)
            if not own_session:
                proc.group, proc.session = parent.group, parent.session
        self.processes[proc.pid] = proc
        proc.body = body
        proc.task = asyncio.get_running_loop().create_task(self._live(proc, body))
        self.track(proc.task)
        self.account()
        return proc

    def left(self) -> list[Proc]:
        """What runs on without anybody who started it: what a snapshot that carries processes carries."""
        return [proc for proc in self.processes.values() if proc.parent not in self.processes and proc.job.is_action]

    def carry(self, left: list[Proc]) -> None:
        """Let copies of these go on here. A pretend process cannot be copied half-way: its copy begins where it began."""
        for proc in left:
            assert proc.body is not None
            twin = self.spawn(proc.body, files=Descriptors(), job=Job(is_action=True), own_session=True)
            twin.who, twin.cwd, twin.env, twin.argv = proc.who, proc.cwd, dict(proc.env), list(proc.argv)

    def track(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """A task that belongs to this machine: `unwound` waits for it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _live(self, proc: Proc, body: Body) -> None:
        try:
            await proc.gate()
            status = Status(await body(proc) & 0xFF)
        except OSError:
            status = Status(1)  # a program that meets an error it does not expect gives up
        except RecursionError:
            status = Status(None, signal.SIGSEGV)  # its stack is full
        self.end(proc, status)

    def end(self, proc: Proc, status: Status) -> None:
        """The process is dead when this returns: out of the table, its descriptors closed, its children given to PID 1."""
        if self.processes.pop(proc.pid, None) is None:
            return
        for other in self.processes.values():
            if other.parent == proc.pid:
                other.parent = 1
        for number in [number for number, port in self.ports.items() if port.proc is proc]:
            del self.ports[number]
        proc.files.close()
        proc.status = status
        proc.ended_ns = self.now_ns()
        proc.over.tell()
        self.changed.tell()
        assert proc.task is not None
        if proc.task is not _current_task() or status.code is None:
            proc.task.cancel()

    def signal(self, proc: Proc, number: int) -> None:
        """Deliver a signal as the kernel would: die, note it for a trap, stop, go on, or nothing."""
        if number == 0 or proc.status is not None:
            return
        if number == signal.SIGCONT:
            proc.stopped = False
            self.changed.tell()
        if number == signal.SIGKILL:
            self.end(proc, Status(None, number))
        elif number in _STOPPING:
            proc.stopped = True
        elif number in proc.caught:
            proc.pending.append(number)
            self.changed.tell()
        elif number not in proc.ignored and number not in _HARMLESS:
            self.end(proc, Status(None, number))

    def targets(self, number: int, caller: Proc) -> list[Proc]:
        """Whom kill(2) with this number means: a process, a group, or everybody one may signal."""
        match number:
            case 0:
                found = [proc for proc in self.processes.values() if proc.group == caller.group]
            case -1:
                found = [proc for proc in self.processes.values() if proc is not caller]
            case _ if number < 0:
                found = [proc for proc in self.processes.values() if proc.group == -number]
            case _:
                found = [self.processes[number]] if number in self.processes else []
        return [proc for proc in found if caller.who.uid in (0, proc.who.uid)]

    def of_job(self, job: Job) -> list[Proc]:
        return [proc for proc in self.processes.values() if proc.job is job]

    def kill_job(self, job: Job) -> None:
        """Every process the action started is dead when this returns."""
        while members := self.of_job(job):
            for proc in members:
                self.end(proc, Status(None, signal.SIGKILL))

    def kill_all(self) -> None:
        while self.processes:
            for proc in list(self.processes.values()):
                self.end(proc, Status(None, signal.SIGKILL))

    async def unwound(self) -> None:
        """Wait until the tasks of dead processes are gone too."""
        tasks = [task for task in self._tasks if task is not _current_task()]
        if tasks:
            await asyncio.wait(tasks)

    # ---- limits

    def account(self) -> None:
        """Kill the largest process while there is more in memory than allowed, as the kernel's OOM killer does."""
        while True:
            used: dict[Job, int] = {}
            for proc in self.processes.values():
                used[proc.job] = used.get(proc.job, 0) + proc.memory_bytes
            for job, size_bytes in used.items():
                job.peak_bytes = max(job.peak_bytes, size_bytes)
            if self.limits.memory_bytes is None or sum(used.values()) <= self.limits.memory_bytes:
                return
            victim = max(self.processes.values(), key=lambda proc: (proc.memory_bytes, proc.pid))
            victim.job.hit = End.OUT_OF_MEMORY
            self.end(victim, Status(None, signal.SIGKILL))

    # ---- facts

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def user_name(self, uid: int) -> str:
        """As /etc/passwd has it."""
        for line in self._users():
            if line[2] == str(uid):
                return line[0]
        return str(uid)

    def user(self, asked: str) -> Who | None:
        """The user of this name or number, or None."""
        for line in self._users():
            if asked in (line[0], line[2]):
                return Who(int(line[2]), int(line[3]))
        return Who(int(asked), int(asked)) if asked.isdigit() else None

    def _users(self) -> list[list[str]]:
        node = self.tree.get("/etc/passwd")
        assert isinstance(node, File)
        return [line.split(":") for line in node.data.decode().splitlines()]

    @property
    def reaches_out(self) -> bool:
        """Whether there is a route to other hosts."""
        return self.network != "none" or "network-none" in self.broken

    def may_reach(self, host: str, port: int) -> bool:
        if "network-allow" in self.broken:
            return True
        if isinstance(self.network, Allow):
            return host in self.network.hosts and port in self.network.ports
        return self.network == "open"

    # ---- standing still

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.gone: str | None = None
        """Why there is no such machine any more; nothing it says after that is an answer."""
        self.changed.tell()


def _current_task() -> asyncio.Task[object] | None:
    return asyncio.current_task()
