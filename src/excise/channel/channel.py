"""One end of a channel: every frame once and in order, whatever became of the connections that carried it.

What was sent is kept until the other side says that it came. A new connection begins with what each has had; the rest is sent
again. So a call is carried out at most once, and what came of it is not lost with a connection.
"""

import asyncio
from collections import deque
from typing import Protocol

from excise.channel import frames
from excise.channel.frames import Header, ProtocolError

MOST_KEPT_BYTES = 16 << 20
"""Sent and not yet seen: more than an honest end, which stops at FULL_BYTES, ever has."""
FULL_BYTES = 4 << 20
_TELL_FRAMES = 64
_TELL_BYTES = 128 << 10
_WRAP = 1 << 32


class Receiver(Protocol):
    """Who is told what comes. What it raises as ProtocolError ends the channel."""

    def received(self, head: Header, payload: bytes) -> None: ...
    def drained(self) -> None:
        """There is room again to send."""
        ...

    def broken(self, reason: str) -> None:
        """Its connection is gone; another may take its place."""
        ...

    def lost(self, reason: str) -> None:
        """Nothing will come any more. Told once."""
        ...


class Channel:
    """What stays while connections come and go. Everything happens in the loop's callbacks."""

    def __init__(self, receiver: Receiver, known: dict[int, tuple[int, int]]) -> None:
        """`known`: the frames that the other side may send."""
        self._receiver = receiver
        self._known = known
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._sent = 0
        self._had = 0
        self._told = 0
        self._untold_bytes = 0
        self._part = bytearray()
        self._carrier: asyncio.Transport | None = None
        self.reason: str | None = None
        """Why it is over."""

    @property
    def had(self) -> int:
        """How many frames of the other side's have come."""
        return self._had

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    @property
    def is_full(self) -> bool:
        """Whether what is not urgent should wait."""
        return self._kept_bytes >= FULL_BYTES

    @property
    def is_connected(self) -> bool:
        return self._carrier is not None

    # ---- connections

    def connect(self, carrier: asyncio.Transport, theirs: int) -> None:
        """Go on over this connection; `theirs`: how many of our frames the other side has had."""
        missing = self._sent - theirs
        if self.reason is not None or not 0 <= missing <= len(self._kept):
            carrier.abort()
            self.fail(f"the other side says it had {theirs} frames of the {self._sent} sent, {len(self._kept)} of them unseen")
            return
        self._forget(len(self._kept) - missing)
        self.disconnect()
        self._part = bytearray()
        self._carrier = carrier
        self._told = self._had
        for frame in self._kept:
            carrier.write(frames.again(frame, self._had))

    def disconnect(self) -> None:
        """Let go of the connection there is, without a word."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.abort()

    def broke(self, carrier: asyncio.BaseTransport | None, reason: str) -> None:
        """This connection is gone, if it is still ours."""
        if carrier is not None and carrier is self._carrier and self.reason is None:
            self._carrier = None
            self._receiver.broken(reason)

    # ---- sending

    def send(self, type: int, call: int, payload: bytes = b"", flags: int = 0) -> None:
        """Never waits. After the end it goes nowhere."""
        if self.reason is not None:
            return
        frame = frames.pack(type, call, self._had, payload, flags)
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        self._sent += 1
        if self._carrier is not None:
            self._told, self._untold_bytes = self._had, 0
            self._carrier.write(frame)
        if self._kept_bytes > MOST_KEPT_BYTES:
            self.fail("the other side takes nothing of what it is sent")

    # ---- receiving

    def take(self, data: bytes, carrier: asyncio.BaseTransport | None = None) -> None:
        """What came over the connection of now; over one before it (`carrier`) nothing comes any more."""
        if carrier is not None and carrier is not self._carrier:
            return
        part = self._part
        part += data
        at, end = 0, len(part)
        try:
            while end - at >= frames.HEADER_BYTES and self.reason is None:
                head = frames.header(part, at, self._known)
                begin = at + frames.HEADER_BYTES
                if end - begin < head.length:
                    break
                at = begin + head.length
                self._one(head, bytes(part[begin:at]))
        except ProtocolError as error:
            self.fail(f"the other side broke the protocol: {error}")
            return
        if part is self._part:  # else a new connection began meanwhile
            del part[:at]
        self._tell()

    def _one(self, head: Header, payload: bytes) -> None:
        fresh = (head.seen - self._sent + len(self._kept)) % _WRAP
        if fresh > len(self._kept):
            raise ProtocolError("that it saw frames which were never sent")
        if fresh:
            self._forget(fresh)
        if head.type != frames.SEEN:
            self._had += 1
            self._untold_bytes += head.length
            self._receiver.received(head, payload)

    def _forget(self, count: int) -> None:
        was_full = self.is_full
        for _ in range(count):
            self._kept_bytes -= len(self._kept.popleft())
        if was_full and not self.is_full:
            self._receiver.drained()

    def _tell(self) -> None:
        """What came is said along with what we send; where that is little, by a frame of its own."""
        if self._carrier is None or (self._had - self._told < _TELL_FRAMES and self._untold_bytes < _TELL_BYTES):
            return
        self._told, self._untold_bytes = self._had, 0
        self._carrier.write(frames.pack(frames.SEEN, 0, self._had))

    # ---- its end

    def fail(self, reason: str) -> None:
        """It is over, for both sides. Twice is fine."""
        if self.reason is not None:
            return
        self.reason = reason
        self.disconnect()
        self._kept.clear()
        self._kept_bytes = 0
        self._part = bytearray()
        self._receiver.lost(reason)

    def finish(self, reason: str) -> None:
        """The same, but what was sent still goes out, and the other side hears why."""
        self.send(frames.BYE, 0, reason.encode()[:4096])
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close()
        self.fail(reason)
