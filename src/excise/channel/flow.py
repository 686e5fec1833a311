"""Byte streams inside a call, each with a window: who does not read stalls who writes, and nobody else."""

import asyncio
from collections import deque

from excise.channel import frames
from excise.channel.channel import Channel
from excise.channel.frames import ProtocolError

_GRANT_BYTES = frames.WINDOW // 2
_SMALL_BYTES = 1024


class Outgoing:
    """What we send within a call."""

    def __init__(self, channel: Channel, call: int) -> None:
        self._channel = channel
        self._call = call
        self._room = frames.WINDOW
        self._waiting: asyncio.Future[None] | None = None
        self.over = False
        """Nobody reads any more."""

    def granted(self, count: int) -> None:
        self._room += count
        if self._room > 1 << 40:
            raise ProtocolError("credit without end")
        self.wake()

    def end(self) -> None:
        self.over = True
        self.wake()

    def wake(self) -> None:
        """Look again whether there is room."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def room(self) -> bool:
        """Wait until the channel takes what is not urgent; False if nobody reads any more."""
        while self._channel.is_full and not self.over and self._channel.reason is None:
            await self._wait()
        return not self.over and self._channel.reason is None

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    async def write(self, data: bytes | memoryview, flags: int = 0) -> bool:
        """All of it, as there is room; False if nobody reads any more. One at a time."""
        left = memoryview(data)
        while left:
            if self.over or self._channel.reason is not None:
                return False
            if not self._room or self._channel.is_full:
                await self._wait()
                continue
            piece = left[: min(self._room, frames.MAX_PAYLOAD)]
            left = left[len(piece) :]
            self._room -= len(piece)
            self._channel.send(frames.DATA, self._call, bytes(piece), flags)
        return not self.over


class Incoming:
    """What comes within a call: at most a window of it waits."""

    def __init__(self, channel: Channel, call: int) -> None:
        self._channel = channel
        self._call = call
        self._room = frames.WINDOW
        self._owed = 0
        self._held: deque[tuple[int, bytes]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.over = False
        """Nothing more comes."""

    @property
    def is_empty(self) -> bool:
        return not self._held

    def came(self, data: bytes, flags: int = 0) -> None:
        self._room -= len(data)
        if self._room < 0:
            raise ProtocolError(f"{-self._room} bytes more than it had credit for")
        if not self.over:
            self._hold(flags, data)
            self._wake()

    def _hold(self, flags: int, data: bytes) -> None:
        """Small ones together: a byte that is held by itself costs a hundred."""
        if self._held and len(data) < _SMALL_BYTES:
            before, last = self._held[-1]
            if before == flags and len(last) < _SMALL_BYTES:
                self._held[-1] = (flags, last + data)
                return
        self._held.append((flags, data))

    def end(self) -> None:
        """What waits can still be taken."""
        self.over = True
        self._wake()

    def drop(self) -> None:
        """Nobody will take it."""
        self._held.clear()
        self.end()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> tuple[int, bytes] | None:
        """The next piece and its flags; None at the end. Cancelling it loses nothing."""
        while not self._held:
            if self.over:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        flags, data = self._held.popleft()
        self._used(len(data))
        return flags, data

    def _used(self, count: int) -> None:
        self._owed += count
        if self._owed >= _GRANT_BYTES and not self.over:
            owed, self._owed = self._owed, 0
            self._room += owed
            self._channel.send(frames.CREDIT, self._call, frames.amount(owed))


class Whole:
    """What comes within a call, kept until all of it is there: a record that is too long for a frame or two."""

    def __init__(self, channel: Channel, call: int, most_bytes: int = frames.MAX_LONG) -> None:
        self._channel = channel
        self._call = call
        self._most_bytes = most_bytes
        self._room = frames.WINDOW
        self._owed = 0
        self._whole = bytearray()

    def came(self, data: bytes, flags: int = 0) -> None:
        self._room -= len(data)
        if flags or self._room < 0 or len(self._whole) + len(data) > self._most_bytes:
            raise ProtocolError("more bytes than were announced, or than it had credit for")
        self._whole += data
        self._owed += len(data)
        if self._owed >= _GRANT_BYTES:
            owed, self._owed = self._owed, 0
            self._room += owed
            self._channel.send(frames.CREDIT, self._call, frames.amount(owed))

    def __len__(self) -> int:
        return len(self._whole)

    def bytes(self) -> bytes:
        return bytes(self._whole)

    def end(self) -> None:
        """All that will come is there."""
