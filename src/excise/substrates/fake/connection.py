"""A byte stream to a port of a pretend machine."""

from excise.substrates.fake.pipes import BrokenPipe, Pipe


class FakeConnection:
    """The caller's ends of two pipes."""

    def __init__(self, there: Pipe, back: Pipe) -> None:
        self._there = there
        self._back = back
        self._closed = False

    async def read(self) -> bytes:
        return await self._back.read()

    async def write(self, data: bytes) -> None:
        try:
            await self._there.write(data)
        except BrokenPipe:
            raise BrokenPipeError("whoever listened inside has gone") from None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._there.writers -= 1
            self._back.readers -= 1
            self._there.changed.tell()
            self._back.changed.tell()
