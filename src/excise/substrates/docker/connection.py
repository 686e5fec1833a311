"""An exec's own connection: the daemon's multiplexed output, read only when asked, and the way to stdin."""

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from excise.errors import SandboxLost, Unsupported
from excise.substrates.docker.endpoint import Endpoint

_HEADER = struct.Struct(">BxxxL")
_PIECE_BYTES = 1 << 16
_LONGEST_REFUSAL_BYTES = 1 << 16


class ExecRefused(Exception):  # noqa: N818 - an answer of the daemon's, sorted by who must act further up
    """The daemon did not start the exec."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ExecConnection:
    """After the daemon's 101 the connection is the program's: frames out, bytes in.

    aiodocker has such a stream too, but without a half-close, which is how stdin says its end.
    """

    exit_code: int | None = None
    """The daemon would have to be asked."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        id: str,
        terminal: bool,
        resize: Callable[[int, int], Awaitable[None]],
    ) -> None:
        self.id = id
        self._resize = resize
        self._reader = reader
        self._writer = writer
        self._terminal = terminal
        self._header: tuple[int, int] | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, path: str, *, id: str, terminal: bool, resize: Callable[[int, int], Awaitable[None]]
    ) -> "ExecConnection":
        """Start the exec at `path` and take its connection over."""
        reader, writer = await endpoint.connect()
        try:
            body = msgspec.json.encode({"Detach": False, "Tty": terminal})
            head = (
                f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await _upgraded(reader)
        except BaseException:
            writer.transport.abort()
            raise
        return cls(reader, writer, id=id, terminal=terminal, resize=resize)

    async def frame(self) -> tuple[int, bytes] | None:
        """The next piece of output and the stream it belongs to; None at the end. Cancelling it loses nothing."""
        try:
            if self._terminal:
                data = await self._reader.read(_PIECE_BYTES)
                return (1, data) if data else None
            if self._header is None:
                self._header = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            stream, length = self._header
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        self._header = None
        return stream, data

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError):  # RuntimeError: the transport is closing
            raise BrokenPipeError("the process does not read its stdin any more") from None

    async def close_stdin(self) -> None:
        if self._terminal:
            await self.write(b"\x04")
            return
        if not self._writer.can_write_eof():
            raise Unsupported("Docker over TLS has no end of stdin for started processes: give stdin= with the action")
        try:
            self._writer.write_eof()
        except (OSError, RuntimeError):
            return  # it has ended: nobody is left to read an end

    async def resize(self, rows: int, columns: int) -> None:
        await self._resize(rows, columns)

    @property
    def half_closes(self) -> bool:
        return self._writer.can_write_eof()

    def close(self) -> None:
        self._writer.transport.abort()


async def _upgraded(reader: asyncio.StreamReader) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        raise SandboxLost("the Docker daemon closed the connection: it is stopping, or gone") from None
    status = int(head.split(None, 2)[1])
    if status in (101, 200):
        return
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    body = await reader.readexactly(min(int(length[1]), _LONGEST_REFUSAL_BYTES)) if length else b""
    raise ExecRefused(status, _message(body))


def _message(body: bytes) -> str:
    try:
        said: Any = msgspec.json.decode(body)
        return str(said["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()
