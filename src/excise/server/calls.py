"""What each verb does: the seam's, on the sandboxes of one key."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from excise.action import Exit, Observation, Output
from excise.asked import kind_of
from excise.channel import frames, records
from excise.channel.flow import Incoming, Outgoing
from excise.channel.frames import ProtocolError
from excise.clock import now_ns
from excise.errors import ExciseError, SandboxLost, SpecError
from excise.handles import finish
from excise.server.budget import Budget, bounded, is_whole, short_first
from excise.server.host import Held, Host
from excise.server.keys import Key
from excise.substrate import Connection, Process

T = TypeVar("T")
_MOST_TOLD = 256


class Asker(Protocol):
    """A call, as its work sees it."""

    number: int
    inner_ns: int
    outgoing: Outgoing
    incoming: Incoming
    tells: Callable[[records.Told], None] | None
    """Who is told what comes within it, once somebody is there."""

    def started(self) -> None: ...


def verb_of(asked: records.Asked) -> str:
    return type(asked).__name__.lower()


async def carried_out(
    work: "Work", budget: Budget, asked: records.Asked, send: Callable[[records.Value], Awaitable[None]], held: int = 0
) -> None:
    """As `answered`, and sent; the short way for what nearly all are."""
    if held or not budget.is_easy(asked):
        async with answered(work, budget, asked, held) as value:
            await send(value)
        return
    commands = budget.enter(asked)
    try:
        await send(await work.do(asked))
    finally:
        budget.leave(asked, commands)


@asynccontextmanager
async def answered(work: "Work", budget: Budget, asked: records.Asked, held: int = 0) -> AsyncGenerator[records.Value]:
    """The answer, with room for it while it is sent. `held`: what of that its caller has reserved for the call itself."""
    if (short := short_first(asked)) is not None:
        async with budget.of(short):
            value = await work.do(short)
            if is_whole(value):
                yield value
                return
            del value
    asked = bounded(asked)
    async with budget.of(asked, held):
        yield await work.do(asked)


class Work:
    """One call's."""

    def __init__(self, host: Host, key: Key, call: Asker) -> None:
        self._host = host
        self._key = key
        self._call = call

    async def do(self, asked: records.Asked) -> records.Value:
        """The answer; what goes wrong is raised."""
        if isinstance(asked, records.OfSubstrate):
            return await self._of_substrate(asked)
        held = self._host.find(self._key, asked.id)
        if isinstance(asked, records.Run):
            return await self._run(held, asked)
        begun_ns, outcome = now_ns(), "ok"
        try:
            return await self._of_sandbox(held, asked)
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            held.life.note(verb_of(asked), "", begun_ns, now_ns(), outcome)

    async def _inner(self, work: Awaitable[T]) -> T:
        """What the substrate takes is counted apart from what we take."""
        begun_ns = now_ns()
        try:
            return await work
        finally:
            self._call.inner_ns += now_ns() - begun_ns

    async def _run(self, held: Held, asked: records.Run) -> records.Seen:
        begun_ns, outcome = now_ns(), "ok"
        try:
            seen = await held.handle.run(asked.action)
            outcome = "ok" if seen.ok else seen.end.value
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            ended_ns = now_ns()
            self._call.inner_ns += ended_ns - begun_ns
            held.life.note("run", kind_of(asked.action), begun_ns, ended_ns, outcome)
            self._host.figures.action_s.append((ended_ns - begun_ns) / 1e9)
        return records.Seen(seen)

    async def _of_substrate(self, asked: records.OfSubstrate) -> records.Value:
        host, key = self._host, self._key
        match asked:
            case records.Probe():
                return records.Able(host.substrate.address, host.offered())
            case records.Create():
                return await self._create(asked)
            case records.Attach(id):
                return records.Made(host.find(key, id).id)
            case records.Look(labels):
                return records.Found(host.listed(key, labels))
            case records.Snapshots():
                return records.Taken(host.taken(key))
            case records.Discard(snapshot):
                await self._inner(host.discard(key, snapshot))
                return records.Done()
            case records.Collect():
                return records.Names(host.collected(key))

    async def _create(self, asked: records.Create) -> records.Made:
        start = asked.spec if asked.spec is not None else asked.snapshot
        if start is None or (asked.spec is not None and asked.snapshot is not None):
            raise SpecError("a sandbox is made of a spec or of a snapshot: say one of them")
        making = self._host.create(
            self._key,
            start,
            deadline_s=asked.deadline_s,
            lease_s=asked.lease_s,
            labels=asked.labels,
            request_id=asked.request_id,
        )
        return records.Made((await self._inner(making)).id)

    async def _of_sandbox(self, held: Held, asked: records.OfLife | records.OfState | records.OfStreams) -> records.Value:
        if isinstance(asked, records.OfState):
            return await self._of_state(held, asked)
        if isinstance(asked, records.OfStreams):
            return await self._of_streams(held, asked)
        await self._inner(self._of_life(held, asked))
        return records.Done()

    async def _of_life(self, held: Held, asked: records.OfLife) -> None:
        handle = held.handle
        match asked:
            case records.Ready():
                await handle.ready()
            case records.Alive():
                await handle.alive()
            case records.Adopt(_, spec):
                await handle.adopt(self._host.own(self._key, spec))
            case records.Pause():
                await handle.pause()
            case records.Resume():
                await handle.resume()
            case records.Renew(_, lease_s):
                await self._host.renew(held, lease_s)
            case records.Close():
                await self._host.end(held)

    async def _of_state(self, held: Held, asked: records.OfState) -> records.Value:
        host, key = self._host, self._key
        match asked:
            case records.Snap(_, keep_s):
                return records.Taken((await self._inner(host.take(held, keep_s)),))
            case records.Reset(_, snapshot):
                await self._inner(held.handle.reset(host.snapshot(key, snapshot)))
                return records.Done()
            case records.Diff(_, since, contents):
                known = None if since is None else host.snapshot(key, since)
                return records.Changes(await self._inner(held.handle.diff(known, contents=contents)))

    async def _of_streams(self, held: Held, asked: records.OfStreams) -> records.Value:
        handle = held.handle
        match asked:
            case records.Start():
                return await self._start(held, asked)
            case records.Kill(_, process):
                if (left := held.left.pop(process, None)) is not None:
                    await self._inner(left.kill())
            case records.Upload(_, path):
                await self._inner(handle.upload(path, _bytes(self._call)))
            case records.Download(_, path):
                await self._inner(self._download(handle.download(path)))
            case records.Connect(_, port):
                await self._connect(await self._inner(handle.connect(port)))
        return records.Done()

    # ---- streams

    async def _start(self, held: Held, asked: records.Start) -> records.Value:
        process = await self._inner(held.handle.start(asked.action))
        self._tell(process)
        heard = asyncio.create_task(_feed(process, self._call))
        try:
            self._call.started()
            seen = await self._inner(self._events(process))
        except asyncio.CancelledError:  # how its client kills it; the outcome is told all the same
            await finish(process.kill())
            seen = records.Seen(await _outcome(process))
        except BaseException:
            with contextlib.suppress(ExciseError):
                await finish(process.kill())
            raise
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
        if seen.observation.still_running:
            held.leave(self._call.number, process)
        return seen

    def _tell(self, process: Process) -> None:
        waiting: set[asyncio.Task[None]] = set()

        def told(what: records.Told) -> None:
            if len(waiting) >= _MOST_TOLD:
                raise ProtocolError(f"{_MOST_TOLD} signals that wait, and one more")
            task = asyncio.create_task(_told(process, what))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

        self._call.tells = told

    async def _events(self, process: Process) -> records.Seen:
        async for event in process.events():
            match event:
                case Output(stream, data):
                    flags = frames.FLAG_STDERR if stream == "stderr" else 0
                    if not await self._call.outgoing.write(data, flags):
                        raise SandboxLost("its client is gone")
                case Exit(observation):
                    return records.Seen(observation)
        raise SandboxLost("a process's events ended without its exit")

    async def _download(self, tar: AsyncIterator[bytes]) -> None:
        async for piece in tar:
            if not await self._call.outgoing.write(piece):
                return

    async def _connect(self, connection: Connection) -> None:
        self._call.started()
        read = asyncio.create_task(self._read(connection))
        written = asyncio.create_task(_write(connection, self._call))
        try:
            await asyncio.wait((read, written), return_when=asyncio.FIRST_COMPLETED)
            if written.done() and not read.done():
                await read  # what it answers to the end of our side
        finally:
            for task in (read, written):
                task.cancel()
            await asyncio.gather(read, written, return_exceptions=True)
            await finish(connection.close())

    async def _read(self, connection: Connection) -> None:
        while data := await connection.read():
            if not await self._call.outgoing.write(data):
                return


async def _outcome(process: Process) -> Observation:
    """How one that was killed ended; what it printed meanwhile is nobody's."""
    async for event in process.events():
        if isinstance(event, Exit):
            return event.observation
    raise SandboxLost("a process's events ended without its exit")


async def _bytes(call: Asker) -> AsyncIterator[bytes]:
    while (piece := await call.incoming.take()) is not None:
        yield piece[1]


async def _feed(process: Process, call: Asker) -> None:
    """Its stdin, to its end."""
    with contextlib.suppress(BrokenPipeError, ProcessLookupError, ExciseError):
        async for data in _bytes(call):
            await process.write(data)
        await process.close_stdin()


async def _write(connection: Connection, call: Asker) -> None:
    async for data in _bytes(call):
        await connection.write(data)


async def _told(process: Process, what: records.Told) -> None:
    with contextlib.suppress(BrokenPipeError, ProcessLookupError, ExciseError):
        match what:
            case records.Resize(rows, columns):
                await process.resize(rows, columns)
            case records.Signal(number):
                await process.signal(number)
