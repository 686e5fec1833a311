"""A process of a pretend machine, as its own code sees it: descriptors, memory, signals, time."""

import asyncio
import errno
import signal
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from excise.action import End
from excise.substrates.fake.files import ROOT, Who, refusal
from excise.substrates.fake.pipes import BrokenPipe, Changed, Stream

if TYPE_CHECKING:
    from excise.substrates.fake.machine import Machine

Program = Callable[["Proc", list[str]], Awaitable[int]]
"""Given its process and its words, a program runs and gives its exit code."""
Body = Callable[["Proc"], Awaitable[int]]
PROGRAM_BYTES = 1 << 20
"""What any process holds, however little it does."""


class Status(NamedTuple):
    """How a process ended: with a code, or by a signal."""

    code: int | None
    signal: int | None = None

    @property
    def shell(self) -> int:
        """As `$?` shows it."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


class Job:
    """What one action started. Its processes carry it, however they detach."""

    def __init__(self, *, is_action: bool = False) -> None:
        self.is_action = is_action
        """And not a session's shell, which outlives its commands."""
        self.hit: End | None = None
        """The limit that stopped one of its processes."""
        self.over = False
        """The action has been answered; what is left of it lives on."""
        self.cpu_ns = 0
        self.peak_bytes = 0


class Descriptors:
    """A process's table of open streams."""

    def __init__(self, streams: dict[int, Stream] | None = None) -> None:
        self._open: dict[int, Stream] = {}
        for number, stream in (streams or {}).items():
            self.put(number, stream)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._open))

    def get(self, number: int) -> Stream:
        if number not in self._open:
            raise refusal(errno.EBADF)
        return self._open[number]

    def put(self, number: int, stream: Stream) -> None:
        stream.holders += 1
        self.drop(number)
        self._open[number] = stream

    def drop(self, number: int) -> None:
        stream = self._open.pop(number, None)
        if stream is not None:
            stream.holders -= 1
            if stream.holders == 0:
                stream.closed()

    def copy(self) -> "Descriptors":
        return Descriptors(self._open)

    def close(self) -> None:
        for number in list(self._open):
            self.drop(number)


class Proc:
    """One process, as its own code sees it."""

    def __init__(self, machine: "Machine", pid: int, parent: int, job: Job, files: Descriptors) -> None:
        self.machine = machine
        self.pid = pid
        self.parent = parent
        self.group = pid
        self.session = pid
        self.job = job
        self.children_job = job
        self.files = files
        self.who: Who = ROOT
        self.cwd = "/"
        self.env: dict[str, str] = {}
        self.argv: list[str] = []
        self.umask = 0o022
        self.memory_bytes = PROGRAM_BYTES
        self.ignored: set[int] = set()
        self.caught: set[int] = set()
        self.pending: list[int] = []
        self.stopped = False
        self.status: Status | None = None
        self.ended_ns = 0
        self.replaced = False
        self.over = Changed()
        self.task: asyncio.Task[None] | None = None
        self.body: Body | None = None
        """What runs in it."""

    async def wait(self) -> Status:
        while self.status is None:
            await self.over.wait()
        return self.status

    def stop(self) -> None:
        self.machine.end(self, Status(None, signal.SIGKILL))

    def signal(self, number: int) -> None:
        self.machine.signal(self, number)

    async def gate(self) -> None:
        """Go on only while neither the machine nor this process is stopped."""
        while self.stopped or self.machine.paused:
            await self.machine.changed.wait()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.gate()

    async def compute(self, seconds: float) -> None:
        """Be busy: it takes time, and it is accounted for."""
        self.job.cpu_ns += round(seconds * 1e9)
        await self.sleep(seconds)

    async def read(self, number: int, most_bytes: int = 1 << 16) -> bytes:
        data = await self.files.get(number).read(most_bytes)
        await self.gate()
        return data

    async def write(self, number: int, data: bytes) -> None:
        await self.gate()
        try:
            with self.noting_full():
                await self.files.get(number).write(data)
        except BrokenPipe:
            self.machine.signal(self, signal.SIGPIPE)
            await asyncio.sleep(0)  # where the signal was deadly, this is where it is felt
            raise refusal(errno.EPIPE) from None

    @contextmanager
    def noting_full(self) -> Generator[None]:
        """Whatever is refused in here for want of space is noted: the limit was hit."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self.job.hit = End.OUT_OF_DISK
            raise

    async def allocate(self, size_bytes: int) -> None:
        """Take memory; who takes too much is killed here."""
        self.memory_bytes += size_bytes
        self.machine.account()
        await asyncio.sleep(0)
