"""An exec's stdin and stdout as a byte stream that carries frames: one WebSocket that lives as long as the sandbox."""

import asyncio
import base64
import os
import re
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from excise.errors import SandboxLost
from excise.substrates.kubernetes import websocket
from excise.substrates.kubernetes.websocket import FrameError, Frames

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
_TELLS = struct.Struct("<8sI")
_MAGIC = b"EXCISE1\n"
_LONGEST_TOLD_BYTES = 1 << 22
_LONGEST_HEAD_BYTES = 65536
_LONGEST_WORDS_BYTES = 4000
_BEAT_S = 30.0
_SILENT_BEATS = 4
Why = Callable[[str], Awaitable[str]]


class Refused(Exception):  # noqa: N818 - an answer, for whoever asked to judge
    """The API did not hand over a stream."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body[:200].decode('utf-8', 'replace')}")
        self.status = status
        self.body = body


class Surroundings(msgspec.Struct, frozen=True):
    """What a program of the container begins with, as its image and the kubelet have it."""

    cwd: str
    env: dict[str, str]


def surroundings(told: bytes) -> Surroundings:
    """`told`: a directory, then variables, each ended by a null byte."""
    cwd, *variables = told.decode("utf-8", "surrogateescape").split("\0")[:-1]
    pairs = (word.partition("=") for word in variables)
    return Surroundings(cwd, {name: value for name, equals, value in pairs if equals})


class StreamCarrier(asyncio.Protocol):
    """A connection that the API has handed over. It is read as it comes: the frames in it have credit of their own."""

    def __init__(self, why: Why) -> None:
        """`why`: what the end of the stream means, given what it said itself."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._why = why
        self._transport: asyncio.Transport | None = None
        self._upgraded: asyncio.Future[None] = loop.create_future()
        self._answer = bytearray()
        self._frames = Frames(self._channel, self._control)
        self._told: asyncio.Future[Surroundings] = loop.create_future()
        self._early = bytearray()
        self._words = bytearray()
        self._status = bytearray()
        self._silent = 0
        self._beat: asyncio.TimerHandle | None = None
        self._verdict: asyncio.Task[None] | None = None
        self._received: Callable[[memoryview], None] | None = None
        self._drained: Callable[[], None] | None = None
        self._ended: Callable[[str], None] | None = None

    async def upgrade(self, path: str, host: str, headers: tuple[tuple[str, str], ...], protocols: str) -> None:
        """Ask for the stream by a GET of `path`, and take it over; raises Refused with what the API answered instead."""
        words = {
            "Host": host,
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Protocol": protocols,
        }
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (*words.items(), *headers)), "", ""]
        assert self._transport is not None
        self._transport.write("\r\n".join(lines).encode())
        await self._upgraded
        self._beat = self._loop.call_later(_BEAT_S, self._keep_alive)

    async def told(self) -> Surroundings:
        """What the guest tells of the container before anything else."""
        return await asyncio.shield(self._told)

    # ---- a Carrier

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begin(
        self, *, received: Callable[[memoryview], None], drained: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        self._received, self._drained, self._ended = received, drained, ended
        early, self._early = self._early, bytearray()
        if early:
            received(memoryview(early))
        if self._transport is None:
            self._judge("the stream ended before it was used")

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(websocket.frame(websocket.BINARY, b"\0" + data))

    def close(self) -> None:
        self._received = self._drained = self._ended = None
        if self._beat is not None:
            self._beat.cancel()
        if self._verdict is not None:
            self._verdict.cancel()
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
        self._silent = 0
        if self._upgraded.done():
            self._take(memoryview(data))
            return
        self._answer += data
        head, found, rest = bytes(self._answer).partition(b"\r\n\r\n")
        if not found and len(self._answer) < _LONGEST_HEAD_BYTES:
            return
        if re.match(rb"HTTP/1\.1 101 ", head):
            self._upgraded.set_result(None)
            self._answer.clear()
            self._take(memoryview(rest))
        elif _whole(head, rest):
            self._upgraded.set_exception(_refusal(head, rest))

    def _take(self, data: memoryview) -> None:
        try:
            self._frames.take(data)
        except FrameError as error:
            self._words += f" the API sent {error}".encode()
            if self._transport is not None:
                self._transport.abort()

    def _channel(self, channel: int, piece: memoryview) -> None:
        if channel == STDOUT:
            if self._received is not None:
                self._received(piece)
            else:
                self._hear(piece)
        elif channel == STDERR:
            self._words = (self._words + piece)[-_LONGEST_WORDS_BYTES:]
        elif channel == STATUS:
            self._status = (self._status + piece)[:_LONGEST_HEAD_BYTES]

    def _hear(self, piece: memoryview) -> None:
        """What comes before the link begins: what the guest tells of itself, and nothing after it until it is greeted."""
        self._early += piece
        if self._told.done() or len(self._early) < _TELLS.size:
            return
        magic, length = _TELLS.unpack_from(self._early)
        if magic != _MAGIC or length > _LONGEST_TOLD_BYTES:
            said = bytes(self._early[:200]).decode("utf-8", "replace")
            self._told.set_exception(SandboxLost(f"what was started in the pod is not the guest: it says {said!r}"))
        elif len(self._early) >= _TELLS.size + length:
            self._told.set_result(surroundings(bytes(self._early[_TELLS.size : _TELLS.size + length])))
            del self._early[: _TELLS.size + length]

    def _control(self, opcode: int, payload: bytes) -> None:
        if self._transport is None:
            return
        if opcode == websocket.PING:
            self._transport.write(websocket.frame(websocket.PONG, payload))
        elif opcode == websocket.CLOSE:
            self._transport.abort()

    def _keep_alive(self) -> None:
        """What stands between us and the pod forgets who is silent; and who is gone without a word never answers."""
        if self._transport is None:
            return
        self._silent += 1
        if self._silent > _SILENT_BEATS:
            self._words += f" nothing came for {_SILENT_BEATS * _BEAT_S:g} s".encode()
            self._transport.abort()
            return
        self._transport.write(websocket.frame(websocket.PING, b""))
        self._beat = self._loop.call_later(_BEAT_S, self._keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._beat is not None:
            self._beat.cancel()
        said = self.last_words(exc)
        for waiting in (self._upgraded, self._told):
            if not waiting.done():
                waiting.set_exception(SandboxLost(said))
            waiting.exception()  # looked at, so that asyncio does not complain where nobody waits for it any more
        if self._ended is not None:
            self._judge(said)

    def last_words(self, exc: Exception | None = None) -> str:
        """What the stream itself says about its end."""
        words = " ".join([_message(bytes(self._status)), self._words.decode("utf-8", "replace"), str(exc or "")])
        return " ".join(["the exec stream ended", *words.split()])

    def _judge(self, said: str) -> None:
        """A broken stream is not the reason, only a sign: who waits is told when the reason is known."""

        async def judged() -> None:
            reason = await self._why(said)
            if self._ended is not None:
                self._ended(reason)

        self._verdict = self._loop.create_task(judged())


def _whole(head: bytes, body: bytes) -> bool:
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return length is None or len(body) >= min(int(length[1]), _LONGEST_HEAD_BYTES)


def _refusal(head: bytes, body: bytes) -> Refused:
    status = re.match(rb"HTTP/1\.\d (\d+)", head)
    return Refused(int(status[1]) if status else 0, body or head)


def _message(status: bytes) -> str:
    """Of a Status that ended the stream: why the exec failed."""
    try:
        said: Any = msgspec.json.decode(status)
        return str(said.get("message") or "") if said.get("status") != "Success" else ""
    except (msgspec.DecodeError, AttributeError):
        return status.decode("utf-8", "replace")
