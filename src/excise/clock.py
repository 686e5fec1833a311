"""The one clock spans are read from: monotonic, and replaceable by a virtual one for simulations."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

_source: ContextVar[Callable[[], int]] = ContextVar("excise_clock", default=time.monotonic_ns)


def now_ns() -> int:
    return _source.get()()


@contextmanager
def reading(source: Callable[[], int]) -> Generator[None]:
    """Within this block (and tasks started in it), `now_ns` reads `source`."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)
