"""A started action as a `Process`, and the byte streams that are made of one: tar in, tar out, a port."""

import asyncio
import errno
import os
from collections.abc import AsyncIterable, AsyncIterator

from excise.action import Command, End, Event, Exit, Observation, Output, Shell
from excise.errors import SpecError, Unsupported
from excise.guest import wire
from excise.guest.exchange import Held
from excise.handles import finish, observe

_LIMIT_ERRORS = {End.OUT_OF_MEMORY: errno.ENOMEM, End.OUT_OF_PIDS: errno.EAGAIN, End.OUT_OF_DISK: errno.ENOSPC}


def observation(ended: wire.Ended, stdout: bytes = b"", stderr: bytes = b"", dropped_bytes: int = 0) -> Observation:
    """What the guest told of an action's end."""
    end = ended.end if ended.end is not None else End.EXITED
    return Observation(
        end=end,
        exit_code=1 if ended.error else None if end is End.TIMED_OUT else ended.exit_code,
        signal=ended.signal if end is End.SIGNALED else None,
        stdout=stdout,
        stderr=stderr,
        dropped_bytes=dropped_bytes,
        guest_ns=ended.guest_ns,
        cpu_ns=ended.cpu_ns,
        max_rss_bytes=ended.max_rss_bytes,
        still_running=ended.still_running,
        session_replaced=ended.session_replaced,
        errno=ended.error or None,
    )


def file_error(ended: wire.Ended) -> int:
    """Why a file action was not carried out, as an errno; 0 if it was. One that a limit kept from beginning has none itself."""
    if ended.error or ended.end is End.EXITED:
        return ended.error or (errno.EIO if ended.exit_code else 0)
    return _LIMIT_ERRORS.get(ended.end or End.SIGNALED, errno.EIO)


class GuestProcess:
    """A running command. Output waits in the guest, and then in the program's own pipe, until it is asked for."""

    def __init__(self, exchange: Held, action: Command) -> None:
        self._exchange = exchange
        self._action = action
        self._session = isinstance(action, Shell) and action.session is not None
        self._writing = asyncio.Lock()
        self._closed_stdin = bool(action.stdin) and action.pty is None
        self._exit: Observation | None = None

    @property
    def id(self) -> str:
        return str(self._exchange.id)

    async def events(self) -> AsyncIterator[Event]:
        while (piece := await self._exchange.take()) is not None:
            stream, data = piece
            yield Output("stderr" if stream == wire.STDERR else "stdout", data)
        if self._exit is None:
            self._exit = observation(self._exchange.outcome())
            yield Exit(self._exit)

    async def wait(self) -> Observation:
        return self._exit if self._exit is not None else await observe(self, self._action.keep)

    async def write(self, data: bytes) -> None:
        if self._session:
            raise Unsupported(f"a session's action has no stdin to write {len(data)} bytes to; start one without a session")
        async with self._writing:
            if self._closed_stdin:
                raise BrokenPipeError("this process's stdin is closed")
            await self._exchange.write(data)

    async def close_stdin(self) -> None:
        if self._session:
            return  # it never had any
        if self._action.pty is not None:
            await self.write(b"\x04")  # a terminal's end of file is a character
            return
        async with self._writing:
            if not self._closed_stdin:
                self._closed_stdin = True
                self._exchange.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        if self._session:
            raise Unsupported(f"a session has no terminal to make {rows} by {columns}")
        if self._action.pty is None:
            raise SpecError("this process has no terminal to resize: start it with pty=Pty()")
        self._tell(wire.resize(self._exchange.id, self._exchange.link.epoch, rows, columns))

    async def signal(self, number: int) -> None:
        if self._session:
            raise Unsupported(f"signal {number} cannot be sent to a session's action: kill it, or use a timeout")
        self._tell(wire.signal(self._exchange.id, self._exchange.link.epoch, number))

    def _tell(self, frame: bytes) -> None:
        if not self._exchange.over:
            self._exchange.link.send(frame)

    async def kill(self) -> None:
        await self._exchange.kill()


# ---- streams of files


async def feed_tar(exchange: Held, path: str, tar: AsyncIterable[bytes]) -> None:
    """Send a tar stream to one that unpacks it, and see how that ended."""
    ended = False
    try:
        try:
            async for piece in tar:
                await exchange.write(piece)
            exchange.close_stdin()
        except BrokenPipeError:
            pass  # it ended early: its end says why
        while await exchange.take() is not None:
            pass
        ended = True
    finally:
        if not ended:
            await finish(exchange.kill())  # a tar cut short must not look like a whole one
    check_file(exchange.outcome(), path)


async def read_tar(exchange: Held, path: str) -> AsyncIterator[bytes]:
    try:
        while (piece := await exchange.take()) is not None:
            yield piece[1]
        check_file(exchange.outcome(), path)
    finally:
        if not exchange.over:
            await finish(exchange.kill())


def check_file(ended: wire.Ended, path: str) -> None:
    """Raise what a file action of the sandbox failed with."""
    if error := file_error(ended):
        raise OSError(error, os.strerror(error), path)


class GuestConnection:
    """A byte stream to a port inside."""

    def __init__(self, exchange: Held) -> None:
        self._exchange = exchange
        self._writing = asyncio.Lock()

    async def read(self) -> bytes:
        piece = await self._exchange.take()
        return b"" if piece is None else piece[1]

    async def write(self, data: bytes) -> None:
        async with self._writing:
            await self._exchange.write(data)

    async def close(self) -> None:
        await self._exchange.kill()
