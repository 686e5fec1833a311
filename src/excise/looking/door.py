"""The owner's side: a socket named after the sandbox, and what is done for who comes through it."""

import asyncio
import contextlib
import contextvars
import os
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from excise.channel.refusal import Refused, refusal
from excise.errors import SandboxLost, SpecError
from excise.handles import finish
from excise.looking import records
from excise.looking.journal import Journal
from excise.looking.records import About
from excise.looking.usage import usage
from excise.substrate import Handle, Process

PREFIX = "excise/"
_CREDENTIALS = struct.Struct("3i")
_MOST_WAITING = 16
_LAST_WORDS_S = 1.0
"""How long who follows a journal may take to read its end."""
_HANGS_UP_S = 10.0
"""How long who was answered may take to hang up."""
_DROPPED_BYTES = 1 << 16
_MOST_NAME_BYTES = 107


class Peer(Exception):  # noqa: N818 - it says who was not let in
    """Somebody who may not look in."""


class Door:
    """Opened by `Sandbox` for as long as it is open. Nothing happens until somebody knocks."""

    def __init__(
        self,
        handle: Handle,
        *,
        about: Callable[[], About],
        removed: Callable[[], None],
        journal: Journal | None,
    ) -> None:
        """`about` describes the sandbox as it is now; `removed` is told when a visitor has ended it."""
        self._handle = handle
        self._about = about
        self._removed = removed
        self._journal = journal
        self._shut: Callable[[], object] | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        # The next time the loop turns: a sandbox's first action is on its way by then. In a context of its own, which is that
        # of every visit too: what is looked at is no part of the rollout.
        self._opening = self._loop.call_soon(self._open, context=contextvars.Context())

    def _open(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(name_of(os.geteuid(), os.getpid(), self._handle.id))
            listening.listen(_MOST_WAITING)
        except OSError:
            listening.close()  # no descriptor left, or a name that is taken: it cannot be looked at, and works as ever
            return
        # The loop must not keep a sandbox alive that nobody holds any more: one whose substrate was closed under it.
        held: weakref.ref[Door] = weakref.ref(self)
        self._loop.add_reader(listening.fileno(), _knock, held, listening)
        self._shut = weakref.finalize(self, _let_go, self._loop, listening)

    def knocked(self, listening: socket.socket) -> None:
        """Somebody is there."""
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # they left, or no descriptor is free
        try:
            check(connection)
        except (OSError, Peer):
            connection.close()
            return
        connection.setblocking(False)
        visit = self._loop.create_task(self._serve(connection))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def close(self) -> None:
        """Let nobody in any more, and end what visitors do."""
        self._lock()
        if self._journal is not None:
            self._journal.close()  # who follows it is told its end
        if self._following:
            await asyncio.wait(self._following, timeout=_LAST_WORDS_S)
        if not self._visits:
            return
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _lock(self) -> None:
        self._opening.cancel()
        if self._shut is not None:
            self._shut()

    # ---- visits

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            asked = await records.asked(reader)
            if asked is not None:
                await self._answer(asked, reader, writer)
                await _heard_out(reader, writer)
        except ConnectionError:
            pass  # they have hung up
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, asked: records.Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match asked:
                case records.Describe(counted):
                    await records.send(writer, await usage(self._handle, self._about()) if counted else self._about())
                case records.Run(action):
                    await records.send(writer, records.Seen(await self._handle.run(action)))
                case records.Start():
                    await self._start(asked, reader, writer)
                case records.Upload(path):
                    await self._handle.upload(path, _pieces(reader))
                    await records.send(writer, records.Done())
                case records.Download(path):
                    async for piece in self._handle.download(path):
                        await records.send(writer, records.Data(piece))
                    await records.send(writer, records.DataEnd())
                case records.Diff(contents):
                    await records.send(writer, records.Changes(await self._handle.diff(None, contents=contents)))
                case records.Follow():
                    await self._follow(writer)
                case records.Close():
                    self._lock()
                    await finish(self._handle.close())
                    await records.send(writer, records.Done())
                    self._removed()
                case _:
                    await records.send(writer, Refused("spec", "that is no verb to begin with"))
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told, and the owner is not disturbed
            await records.send(writer, refusal(error))

    async def _start(self, asked: records.Start, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A command that lives no longer than the connection, and nothing that it started does."""
        process = await self._handle.start(asked.action)
        heard = asyncio.create_task(_heard(process, reader))
        told = asyncio.create_task(_told(process, writer))
        try:
            await records.send(writer, records.Done())
            await asyncio.wait((heard, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (heard, told):
                task.cancel()
            await asyncio.gather(heard, told, return_exceptions=True)
            with contextlib.suppress(SandboxLost):
                await finish(process.kill())
        if not told.cancelled():
            told.result()
            await records.send(writer, records.Done())

    async def _follow(self, writer: asyncio.StreamWriter) -> None:
        if self._journal is None:
            raise SpecError("its owner keeps no journal: start it with EXCISE_JOURNAL=DIRECTORY")
        visit = asyncio.current_task()
        assert visit is not None
        self._following.add(visit)
        visit.add_done_callback(self._following.discard)
        async for piece in self._journal.follow():
            await records.send(writer, records.Data(piece))
        await records.send(writer, records.DataEnd())


def _knock(door: "weakref.ref[Door]", listening: socket.socket) -> None:
    if (there := door()) is not None:
        there.knocked(listening)


def _let_go(loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
    """Stop listening, from whatever thread the last reference went in, and even after the loop's end."""

    def shut() -> None:
        loop.remove_reader(listening.fileno())
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # for the copies that forks of ours may hold
        listening.close()

    if loop.is_closed():
        listening.close()
    elif _is_running(loop):
        shut()
    else:
        weakref.finalize(shut, listening.close)  # a loop that is closed before its next turn forgets what it was to do
        loop.call_soon_threadsafe(shut)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def name_of(uid: int, pid: int, id: str) -> bytes:
    """The abstract socket of the sandbox `id`; a long one's end is cut where the kernel has no room, and the owner tells it."""
    return b"\0" + f"{PREFIX}{uid}/{pid}/{id}".encode()[:_MOST_NAME_BYTES]


def check(connection: socket.socket) -> None:
    """Let in the same user, who sees the same files, and root."""
    pid, uid, _ = credentials(connection)
    if uid not in (0, os.geteuid()):
        raise Peer(f"uid {uid}")
    try:
        same = _mounts(pid) == _mounts("self")
    except PermissionError:
        same = uid == 0  # whom an ordinary user cannot look at
    if not same:
        raise Peer(f"pid {pid}, which sees other files")


def _mounts(pid: int | str) -> Path:
    """What names the mount namespace of a process."""
    return Path(f"/proc/{pid}/ns/mnt").readlink()


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of the other side, by the kernel's word."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return pid, uid, gid


async def _heard_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hang up after them: what they still send would come back as an error, and cost them the answer they have not read."""
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HANGS_UP_S):
            while await reader.read(_DROPPED_BYTES):
                pass


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        match await records.asked(reader):
            case records.Data(data):
                yield data
            case records.DataEnd():
                return
            case _:
                raise SpecError("the stream broke off")


async def _told(process: Process, writer: asyncio.StreamWriter) -> None:
    async for event in process.events():
        await records.send(writer, records.happened(event))


async def _heard(process: Process, reader: asyncio.StreamReader) -> None:
    """What the other side sends, until it hangs up."""
    while (asked := await records.asked(reader)) is not None:
        with contextlib.suppress(BrokenPipeError, ProcessLookupError):
            match asked:
                case records.Data(data):
                    await process.write(data)
                case records.DataEnd():
                    await process.close_stdin()
                case records.Resize(rows, columns):
                    await process.resize(rows, columns)
                case records.Signal(number):
                    await process.signal(number)
                case _:
                    return
