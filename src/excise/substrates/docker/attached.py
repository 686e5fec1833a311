"""The stdin and stdout of a container's PID 1 as a byte stream that carries frames."""

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable

from excise.errors import SandboxLost, SubstrateError
from excise.substrates.docker.endpoint import Endpoint

_PIECE = struct.Struct(">BxxxI")  # the daemon puts the stream and the length before each piece
_STDOUT, _STDERR = 1, 2
_LONGEST_HEAD_BYTES = 65536
_LONGEST_WORDS_BYTES = 2000


class AttachedCarrier(asyncio.Protocol):
    """A connection that the daemon has handed over. It is read as it comes: the frames in it have credit of their own."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = bytearray()
        self._piece = bytearray()
        self._stream = 0
        self._left = 0
        self._words = bytearray()
        self._received: Callable[[memoryview], None] | None = None
        self._drained: Callable[[], None] | None = None
        self._ended: Callable[[str], None] | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, path: str) -> "AttachedCarrier":
        """Ask for the connection by a POST to `path`, and take it over."""
        carrier = cls()
        try:
            await endpoint.take_over(lambda: carrier)
            carrier.send(f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode())
            await carrier._upgraded
        except BaseException as error:
            carrier.close()
            if isinstance(error, OSError):
                raise SandboxLost(f"the Docker daemon at {endpoint.url} does not answer any more ({error})") from None
            raise
        return carrier

    # ---- a Carrier

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begin(
        self, *, received: Callable[[memoryview], None], drained: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        self._received, self._drained, self._ended = received, drained, ended
        early = bytes(self._head)
        self._head.clear()
        self._split(memoryview(early))
        if self._transport is not None:
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._received = self._drained = self._ended = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # ---- a Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)  # so that we are told when all of it has gone
        self._transport = transport

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained()

    def data_received(self, data: bytes) -> None:
        if self._upgraded.done():
            self._split(memoryview(data))
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) < _LONGEST_HEAD_BYTES:
            return
        head = bytes(self._head[:end])
        del self._head[: end + 4]
        if re.match(rb"HTTP/1\.\d (101|200) ", head):
            assert self._transport is not None
            self._transport.pause_reading()  # until somebody is there to be told
            self._upgraded.set_result(None)
        else:
            said = head.partition(b"\r\n")[0].decode("utf-8", "replace")
            self._upgraded.set_exception(SubstrateError(f"the Docker daemon does not hand over a container's stdin: {said}"))

    def _split(self, data: memoryview) -> None:
        """Take the daemon's pieces apart: what is PID 1's stdout goes on, the end of its stderr is kept."""
        while data:
            if not self._left:
                taken = data[: _PIECE.size - len(self._piece)]
                self._piece += taken
                data = data[len(taken) :]
                if len(self._piece) == _PIECE.size:
                    self._stream, self._left = _PIECE.unpack(self._piece)
                    self._piece.clear()
                continue
            content, data = data[: self._left], data[self._left :]
            self._left -= len(content)
            if self._stream == _STDOUT and self._received is not None:
                self._received(content)
            elif self._stream == _STDERR:
                self._words = (self._words + content)[-_LONGEST_WORDS_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._upgraded.done():
            self._upgraded.set_exception(SandboxLost("the Docker daemon closed the connection: it is stopping, or gone"))
        with contextlib.suppress(Exception):
            self._upgraded.exception()  # looked at, so that asyncio does not complain where nobody waits for it any more
        if self._ended is not None:
            words = " ".join(self._words.decode("utf-8", "replace").split())
            self._ended(f"its container ended{f' ({exc})' if exc else ''}{f', saying: {words}' if words else ''}")
