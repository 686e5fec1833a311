"""A running command as `Sandbox.start` hands it out: whatever its caller waits for is in the recording.

What is recorded is the waiting, not the command's life: while a server runs in the background and nobody reads it, it is the
model's time that passes.
"""

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from excise.action import Event, Exit, Observation
from excise.substrate import Process
from excise.trace import span

T = TypeVar("T")
KIND = "stream"


class Waits(Generic[T]):
    """An asynchronous iterator; each wait for its next item is a span."""

    def __init__(self, items: AsyncIterator[T], name: str, sandbox: str) -> None:
        self._items = items
        self._name = name
        self._sandbox = sandbox

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        with span(self._name, self._sandbox, KIND):
            item = await anext(self._items, None)
        if item is None:
            raise StopAsyncIteration
        return item


class Streamed:
    """A Process like the one it holds."""

    def __init__(self, process: Process, sandbox: str, heard: Callable[[Event], None] | None = None) -> None:
        """`heard` is told of every event that the caller is."""
        self._process = process
        self._sandbox = sandbox
        self._heard = heard

    @property
    def id(self) -> str:
        return self._process.id

    def events(self) -> AsyncIterator[Event]:
        events = self._process.events()
        return Waits(events if self._heard is None else _told(events, self._heard), "action", self._sandbox)

    async def write(self, data: bytes) -> None:
        with self._span():
            await self._process.write(data)

    async def close_stdin(self) -> None:
        with self._span():
            await self._process.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        with self._span():
            await self._process.resize(rows, columns)

    async def signal(self, number: int) -> None:
        with self._span():
            await self._process.signal(number)

    async def wait(self) -> Observation:
        with self._span() as recorded:
            seen = await self._process.wait()
            recorded.outcome = seen.end.value
        if self._heard is not None:
            self._heard(Exit(seen))
        return seen

    async def kill(self) -> None:
        with self._span():
            await self._process.kill()

    def _span(self) -> span:
        return span("action", self._sandbox, KIND)


async def _told(events: AsyncIterator[Event], heard: Callable[[Event], None]) -> AsyncIterator[Event]:
    async for event in events:
        heard(event)
        yield event
