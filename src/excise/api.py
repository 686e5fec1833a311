"""The one place where the two halves meet: deliver sandboxes, and measure substrates."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from excise.registry import make
from excise.substrate import Substrate
from excise.trace import Trace, recording


@asynccontextmanager
async def connect(address: str) -> AsyncGenerator[Substrate]:
    """The substrate at `address`, closed at the end of the block."""
    substrate = make(address)
    try:
        yield substrate
    finally:
        await substrate.close()


@contextmanager
def record() -> Generator[Trace]:
    """Meter your own loop: every sandbox used in this block lands in the trace."""
    with recording(Trace()) as trace:
        yield trace
