"""The visitor's side: a sandbox behind its owner's door, as a Handle."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from excise.action import Action, Command, Event, Exit, Keep, Observation, Output, Stat
from excise.channel.refusal import Refused, as_exception
from excise.errors import SandboxLost, SpecError
from excise.handles import Undeclared, finish, observe
from excise.looking import records
from excise.looking.door import credentials
from excise.looking.records import About
from excise.spec import Spec
from excise.substrate import Change, Process, Snapshot

PATIENCE_S = 5.0
"""How long an owner may take to say that it is there."""

T = TypeVar("T", bound=msgspec.Struct)


class Line:
    """One connection to an owner: one verb."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, record: msgspec.Struct) -> None:
        try:
            await records.send(self._writer, record)
        except ConnectionError:
            raise SandboxLost(_GONE) from None

    async def next(self) -> records.Answered:
        """The owner's next message; its refusal is raised."""
        told = await records.answered(self._reader)
        if told is None:
            raise SandboxLost(_GONE)
        if isinstance(told, Refused):
            raise as_exception(told)
        return told

    async def expect(self, kind: type[T]) -> T:
        told = await self.next()
        if not isinstance(told, kind):
            raise SandboxLost(f"its owner answered {type(told).__name__.lower()}: it runs another version of excise")
        return told


_GONE = "the sandbox's owner has ended it, or hung up"


@asynccontextmanager
async def line(name: bytes, uid: int) -> AsyncGenerator[Line]:
    """A connection to the door `name`, if it is the user `uid` who listens there."""
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        ours.setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_connect(ours, name)
        _check(ours, uid)
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException as error:
        ours.close()
        if isinstance(error, TimeoutError):
            raise SandboxLost("its owner does not answer: it is stopped, or its event loop is busy") from None
        if isinstance(error, OSError):
            raise SandboxLost(_GONE) from None
        raise
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await finish(writer.wait_closed())


def _check(ours: socket.socket, uid: int) -> None:
    """Anyone can make a name; who listens there, the kernel says."""
    if credentials(ours)[1] != uid:
        raise SpecError("somebody else listens at the sandbox's door: its name is not to be trusted")


class Visit(Undeclared):
    """What a Handle does, done by the owner."""

    def __init__(self, about: About, name: bytes, uid: int) -> None:
        self.id = about.id
        self._address = about.address
        self._name = name
        self._uid = uid

    def _line(self) -> contextlib.AbstractAsyncContextManager[Line]:
        return line(self._name, self._uid)

    async def ready(self) -> None:
        """It has been since before we came."""

    async def alive(self) -> None:
        """Not its owner's word: the sandbox is asked."""
        await self.run(Stat("/"))

    async def adopt(self, spec: Spec) -> None:
        raise SpecError(f"what it is to be, of {spec.image} or not, is its owner's to say")

    async def run(self, action: Action) -> Observation:
        async with self._line() as owner:
            await owner.send(records.Run(action))
            return (await owner.expect(records.Seen)).observation

    async def start(self, action: Command) -> Process:
        held = contextlib.AsyncExitStack()
        try:
            owner = await held.enter_async_context(self._line())
            await owner.send(records.Start(action))
            await owner.expect(records.Done)
        except BaseException:
            await finish(held.aclose())
            raise
        return VisitedProcess(owner, held, action.keep)

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        async with self._line() as owner:
            await owner.send(records.Upload(path))
            answer = asyncio.ensure_future(owner.expect(records.Done))
            try:
                async for piece in tar:
                    if answer.done():  # refused: it reads no more
                        break
                    await owner.send(records.Data(piece))
                if not answer.done():
                    await owner.send(records.DataEnd())
                await answer
            finally:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        async with self._line() as owner:
            await owner.send(records.Download(path))
            while isinstance(told := await owner.next(), records.Data):
                yield told.data

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        if since is not None:
            return await super().diff(since, contents=contents)
        async with self._line() as owner:
            await owner.send(records.Diff(contents))
            return (await owner.expect(records.Changes)).changes

    async def follow(self) -> AsyncIterator[bytes]:
        """Its journal, to its end."""
        async with self._line() as owner:
            await owner.send(records.Follow())
            while isinstance(told := await owner.next(), records.Data):
                yield told.data

    async def renew(self, lease_s: float) -> None:
        raise SpecError(f"a lease of {lease_s:g} s is its owner's to ask for")

    async def close(self) -> None:
        """End the sandbox, under its owner's hands."""
        async with self._line() as owner:
            await owner.send(records.Close())
            await owner.expect(records.Done)


class VisitedProcess:
    """A command that runs as long as we hold its connection."""

    def __init__(self, owner: Line, held: contextlib.AsyncExitStack, keep: Keep) -> None:
        self._owner = owner
        self._held = held
        self._keep = keep
        self.id = ""

    async def events(self) -> AsyncIterator[Event]:
        while True:
            match await self._owner.next():
                case records.Happened(stream, data):
                    yield Output(stream, data)
                case records.Exited(observation):
                    await self._owner.expect(records.Done)  # what it left running is dead
                    await self.kill()
                    yield Exit(observation)
                    return
                case other:
                    raise SandboxLost(f"its owner sent {type(other).__name__.lower()}: it runs another version of excise")

    async def write(self, data: bytes) -> None:
        await self._owner.send(records.Data(data))

    async def close_stdin(self) -> None:
        await self._owner.send(records.DataEnd())

    async def resize(self, rows: int, columns: int) -> None:
        await self._owner.send(records.Resize(rows, columns))

    async def signal(self, number: int) -> None:
        await self._owner.send(records.Signal(number))

    async def wait(self) -> Observation:
        return await observe(self, self._keep)

    async def kill(self) -> None:
        """Hang up: the owner kills what it started."""
        await self._held.aclose()
