"""What a process reads from and writes to: pipes of bounded size, files, devices, terminals.

A full pipe stalls its writer and nobody else: that is all the flow control there is, and all that is needed.
"""

import asyncio
import errno
from collections import deque
from typing import Protocol

from excise.substrates.fake.files import Computed, Device, File, Tree, refusal

PIPE_BYTES = 1 << 16
PIECE_BYTES = 1 << 16


class BrokenPipe(Exception):  # noqa: N818 - as the kernel calls it
    """Nobody will ever read what is written."""


class Changed:
    """Wakes those who wait for something to change."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Pipe:
    """Bytes on their way; `capacity_bytes` of them at most."""

    def __init__(self, capacity_bytes: int = PIPE_BYTES, changed: Changed | None = None) -> None:
        self._pieces: deque[bytes] = deque()
        self._capacity_bytes = capacity_bytes
        self.changed = changed if changed is not None else Changed()
        self.held_bytes = 0
        self.readers = 0
        self.writers = 0
        self.discards = False
        """Nobody reads any more, and the writers shall not be hurt by that."""

    def put(self, data: bytes) -> None:
        """Add without waiting for room."""
        if data and not self.discards:
            self._pieces.append(data)
            self.held_bytes += len(data)
            self.changed.tell()

    async def write(self, data: bytes) -> None:
        while data:
            while self.held_bytes >= self._capacity_bytes and self.readers and not self.discards:
                await self.changed.wait()
            if not self.readers and not self.discards:
                raise BrokenPipe
            room = len(data) if self.discards else self._capacity_bytes - self.held_bytes
            self.put(data[:room])
            data = data[room:]

    def take(self, most_bytes: int = PIECE_BYTES) -> bytes:
        """What is there, without waiting."""
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        if len(piece) > most_bytes:
            self._pieces.appendleft(piece[most_bytes:])
            piece = piece[:most_bytes]
        self.held_bytes -= len(piece)
        self.changed.tell()
        return piece

    async def read(self, most_bytes: int = PIECE_BYTES) -> bytes:
        """The next bytes; empty once every writer has gone."""
        while not self.held_bytes and self.writers:
            await self.changed.wait()
        return self.take(most_bytes)

    def discard(self) -> None:
        self.discards = True
        self._pieces.clear()
        self.held_bytes = 0
        self.changed.tell()


class Stream(Protocol):
    """An open description: what a descriptor stands for. Several descriptors may share one."""

    holders: int

    async def read(self, most_bytes: int) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    def closed(self) -> None:
        """The last holder let go."""
        ...


class ReadEnd:
    def __init__(self, pipe: Pipe) -> None:
        self.holders = 0
        self.pipe = pipe
        pipe.readers += 1

    async def read(self, most_bytes: int) -> bytes:
        return await self.pipe.read(most_bytes)

    async def write(self, data: bytes) -> None:
        raise refusal(errno.EBADF)

    def closed(self) -> None:
        self.pipe.readers -= 1
        self.pipe.changed.tell()


class WriteEnd:
    def __init__(self, pipe: Pipe) -> None:
        self.holders = 0
        self.pipe = pipe
        pipe.writers += 1

    async def read(self, most_bytes: int) -> bytes:
        raise refusal(errno.EBADF)

    async def write(self, data: bytes) -> None:
        await self.pipe.write(data)

    def closed(self) -> None:
        self.pipe.writers -= 1
        self.pipe.changed.tell()


class OpenFile:
    """A file or device, and where in it one is."""

    def __init__(self, tree: Tree, node: File | Device | Computed, *, append: bool = False) -> None:
        self.holders = 0
        self._tree = tree
        self._node = node
        self._append = append
        self._offset = 0

    async def read(self, most_bytes: int) -> bytes:
        match self._node:
            case File(data=content) | Computed(data=content):
                data = bytes(content[self._offset : self._offset + most_bytes])
            case Device(kind="zero"):
                return bytes(most_bytes)
            case _:
                return b""
        self._offset += len(data)
        return data

    async def write(self, data: bytes) -> None:
        if not isinstance(self._node, File):
            return
        while data:
            if self._append:
                self._offset = len(self._node.data)
            written = self._tree.put(self._node, data, self._offset)
            self._offset += written
            data = data[written:]

    def closed(self) -> None:
        """A file stays where it is."""


class Terminal:
    """The program's side of a pty: one stream both ways, lines echoed and ended as terminals do."""

    def __init__(self, keys: Pipe, screen: Pipe, rows: int, columns: int) -> None:
        self.holders = 0
        self.keys = keys
        self.screen = screen
        self.rows = rows
        self.columns = columns
        self.echoes = True
        keys.readers += 1
        screen.writers += 1

    def type(self, data: bytes) -> None:
        """What is typed shows on the screen and waits to be read; ^D at the start of a line ends the input."""
        text, end, _ = data.partition(b"\x04")
        text = text.replace(b"\r", b"\n").replace(b"\x03", b"")
        if self.echoes:
            self.screen.put(text.replace(b"\n", b"\r\n"))
        self.keys.put(text)
        if end:
            self.keys.writers = 0
            self.keys.changed.tell()

    async def read(self, most_bytes: int) -> bytes:
        return await self.keys.read(most_bytes)

    async def write(self, data: bytes) -> None:
        await self.screen.write(data.replace(b"\n", b"\r\n"))

    def closed(self) -> None:
        self.keys.readers -= 1
        self.screen.writers -= 1
        self.screen.changed.tell()
