"""An event loop whose clock jumps to the next timer when nothing is ready: an hour of sleeping costs microseconds.

`asyncio.sleep`, `asyncio.timeout` and every deadline built on them work as ever. Threads do not: the clock cannot know
that one is still busy.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from excise.clock import reading

T = TypeVar("T")


class Standstill(RuntimeError):  # noqa: N818 - the name says what happened
    """Every task waits for something that can no longer come."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time. It starts at zero and moves only when every task waits."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        return self._virtual_s

    def time_ns(self) -> int:
        return round(self._virtual_s * 1e9)

    def _advance(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            waiting = sorted(getattr(task.get_coro(), "__qualname__", "a task") for task in asyncio.all_tasks(self))
            raise Standstill(f"nothing can happen any more: no timer is set, and these wait: {', '.join(waiting) or 'none'}")
        self._virtual_s += timeout_s


class _JumpingSelector(selectors.BaseSelector):
    """A real selector that never blocks: where another would wait, it moves the clock."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout != 0:
            self._advance(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time; spans recorded meanwhile read the same clock."""
    loop = VirtualLoop()
    with reading(loop.time_ns), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(coroutine)
