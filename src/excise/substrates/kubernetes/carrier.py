"""A pod's stream as one that carries frames: an exec's stdin and stdout, or a forwarded port, in a WebSocket of its own."""

import asyncio
import base64
import contextvars
import os
import re
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from excise.errors import SandboxLost
from excise.guest.carrier import Carrier
from excise.substrates.kubernetes import websocket
from excise.substrates.kubernetes.websocket import FrameError, Frames

STDERR, STATUS = 2, 3
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


class Channels(msgspec.Struct, frozen=True):
    """Which numbers the streams in a WebSocket have."""

    sends: int
    hears: int
    says: frozenset[int]
    """Where words come that tell of an end."""
    forwards: bool = False
    """Each begins with two bytes, the port's number, that are nobody's."""


EXEC = Channels(0, 1, frozenset((STDERR, STATUS)))
FORWARD = Channels(0, 0, frozenset((1,)), forwards=True)
_PORT_BYTES = 2


class Surroundings(msgspec.Struct, frozen=True):
    """What a program of the container begins with, as its image and the kubelet have it."""

    cwd: str
    uid: int
    env: dict[str, str]


class Told:
    """What the guest tells of the container before anything else, as it comes."""

    def __init__(self) -> None:
        self.early = bytearray()
        """What came and was not part of it."""

    def take(self, piece: bytes | memoryview) -> Surroundings | None:
        """All of it, once it is there; SandboxLost if this is no guest."""
        self.early += piece
        if len(self.early) < _TELLS.size:
            return None
        magic, length = _TELLS.unpack_from(self.early)
        if magic != _MAGIC or length > _LONGEST_TOLD_BYTES:
            said = bytes(self.early[:200]).decode("utf-8", "replace")
            raise SandboxLost(f"what was started in the pod is not the guest: it says {said!r}")
        if len(self.early) < _TELLS.size + length:
            return None
        told = bytes(self.early[_TELLS.size : _TELLS.size + length])
        del self.early[: _TELLS.size + length]
        return surroundings(told)


def surroundings(told: bytes) -> Surroundings:
    """`told`: a directory, a user's number, then variables, each ended by a null byte."""
    cwd, uid, *variables = told.decode("utf-8", "surrogateescape").split("\0")[:-1]
    pairs = (word.partition("=") for word in variables)
    return Surroundings(cwd, int(uid), {name: value for name, equals, value in pairs if equals})


class Judged:
    """A carrier whose end is explained by somebody else: a broken stream is not the reason, only a sign of it."""

    def __init__(self, carrier: Carrier, why: Why) -> None:
        """`why`: what the end means, given what the stream said itself. Who waits is told when that is known."""
        self._carrier = carrier
        self._why = why
        self._ended: Callable[[str], None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self.send = carrier.send

    @property
    def waiting_bytes(self) -> int:
        return self._carrier.waiting_bytes

    def begin(
        self, *, received: Callable[[memoryview], None], drained: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        self._ended = ended
        self._carrier.begin(received=received, drained=drained, ended=self._judge)

    def _judge(self, said: str) -> None:
        async def judged() -> None:
            reason = await self._why(said)
            if self._ended is not None:
                self._ended(reason)

        self._judging = asyncio.get_running_loop().create_task(judged(), context=contextvars.Context())

    def close(self) -> None:
        self._ended = None
        self._carrier.close()
        if self._judging is not None and self._judging is not asyncio.current_task():
            self._judging.cancel()


class StreamCarrier(asyncio.Protocol):
    """A connection that the API has handed over. It is read as it comes: the frames in it have credit of their own."""

    def __init__(self, channels: Channels = EXEC) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._channels = channels
        self._port = dict.fromkeys((channels.hears, *channels.says), _PORT_BYTES if channels.forwards else 0)
        self._transport: asyncio.Transport | None = None
        self._upgraded: asyncio.Future[None] = loop.create_future()
        self._answer = bytearray()
        self._frames = Frames(self._channel, self._control)
        self._told: asyncio.Future[Surroundings] = loop.create_future()
        self._telling = Told()
        self._words = bytearray()
        self._status = bytearray()
        self._silent = 0
        self._beat: asyncio.TimerHandle | None = None
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
        if early := bytes(self._telling.early):
            received(memoryview(early))
        if self._transport is None:
            self._loop.call_soon(self._over, None)

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(websocket.frame(websocket.BINARY, bytes((self._channels.sends,)) + data))

    def close(self) -> None:
        self._received = self._drained = self._ended = None
        if self._beat is not None:
            self._beat.cancel()
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
        if port := self._port.get(channel, 0):
            self._port[channel], piece = max(0, port - len(piece)), piece[port:]
        if channel == self._channels.hears and piece:
            if self._received is not None:
                self._received(piece)
            else:
                self._hear(piece)
        elif channel == STATUS:
            self._status = (self._status + piece)[:_LONGEST_HEAD_BYTES]
        elif channel in self._channels.says:
            self._words = (self._words + piece)[-_LONGEST_WORDS_BYTES:]
            if self._channels.forwards and piece and self._transport is not None:
                self._transport.abort()  # the port's stream has failed, and nobody closes it

    def _hear(self, piece: memoryview) -> None:
        """What comes before the link begins: what the guest tells of itself, and nothing after it until it is greeted."""
        if self._told.done():
            return
        try:
            found = self._telling.take(piece)
        except SandboxLost as error:
            self._told.set_exception(error)
        else:
            if found is not None:
                self._told.set_result(found)

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
        for waiting in (self._upgraded, self._told):
            if not waiting.done():
                waiting.set_exception(SandboxLost(self.last_words(exc)))
            waiting.exception()  # looked at, so that asyncio does not complain where nobody waits for it any more
        self._over(exc)

    def _over(self, exc: Exception | None) -> None:
        if self._ended is not None:
            self._ended(self.last_words(exc))

    def last_words(self, exc: Exception | None = None) -> str:
        """What the stream itself says about its end."""
        words = " ".join([_message(bytes(self._status)), self._words.decode("utf-8", "replace"), str(exc or "")]).split()
        return " ".join(["the pod's stream ended:", *words]) if words else "the pod's stream ended"


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
