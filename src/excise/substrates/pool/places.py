"""The hard caps: a sandbox has its place from before it is made until after it is closed."""

import asyncio
from collections import deque


class Places:
    """So many sandboxes, and so many bytes, at most. Who waits is served in order."""

    def __init__(self, count_cap: int, memory_cap_bytes: int | None) -> None:
        self.count_cap = count_cap
        self.memory_cap_bytes = memory_cap_bytes
        self.count = 0
        self.memory_bytes = 0
        self._leaving_count = self._leaving_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[bool], int]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def is_free(self, size_bytes: int, count: int = 1) -> bool:
        return self.count + count <= self.count_cap and self._has_memory(size_bytes)

    def _has_memory(self, size_bytes: int) -> bool:
        return self.memory_cap_bytes is None or self.memory_bytes + size_bytes <= self.memory_cap_bytes

    def take(self, size_bytes: int, count: int = 1, *, first: bool = False) -> bool:
        """A place now, if there is one and nobody waits for it (`first`: whoever waits).

        A template takes bytes alone: where these have no cap, nobody waits for them.
        """
        awaited = self._waiting and (count or self.memory_cap_bytes is not None)
        if (awaited and not first) or not self.is_free(size_bytes, count):
            return False
        self._add(size_bytes, count)
        return True

    def ask(self, size_bytes: int, *, first: bool = False) -> asyncio.Future[bool]:
        """Stand in the queue. True: it has a place; False: something was shelved, look whether it will do. See `leave`."""
        given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((given, size_bytes))
        else:
            self._waiting.append((given, size_bytes))
        return given

    def leave(self, given: asyncio.Future[bool], size_bytes: int) -> None:
        """Give up: out of the queue; what was given meanwhile goes to the next."""
        if given.done() and not given.cancelled():
            if given.result():
                self.give(size_bytes)
            else:
                self.nudge()
            return
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] is not given)
        self._serve()

    def nudge(self) -> None:
        """Something is idle now: whoever waits longest may look at it."""
        while self._waiting:
            given, _ = self._waiting.popleft()
            if not given.done():
                given.set_result(False)
                return

    def give(self, size_bytes: int, count: int = 1) -> None:
        """A place is free again."""
        self._add(-size_bytes, -count)
        self._serve()

    def resize(self, by_bytes: int) -> bool:
        """What has a place turned out to be larger, or smaller, by so much; whether there is room for that."""
        if by_bytes > 0 and not self._has_memory(by_bytes):
            return False
        self._add(by_bytes, 0)
        if by_bytes < 0:
            self._serve()
        return True

    def leaving(self, size_bytes: int, count: int = 1) -> None:
        """What has this place is being closed: it will be given back."""
        self._leaving_count += count
        self._leaving_bytes += size_bytes

    def left(self, size_bytes: int, count: int = 1) -> None:
        """It is closed."""
        self.leaving(-size_bytes, -count)
        self.give(size_bytes, count)

    def lacking(self) -> tuple[int, int]:
        """How many places and bytes must still be made free, for those who wait and for what outgrew the cap."""
        count = self.count - self._leaving_count + len(self._waiting) - self.count_cap
        size_bytes = self.memory_bytes - self._leaving_bytes + sum(size_bytes for _, size_bytes in self._waiting)
        return max(0, count), 0 if self.memory_cap_bytes is None else max(0, size_bytes - self.memory_cap_bytes)

    def _add(self, size_bytes: int, count: int) -> None:
        self.count += count
        self.memory_bytes += size_bytes

    def _serve(self) -> None:
        while self._waiting and self.is_free(self._waiting[0][1]):
            given, size_bytes = self._waiting.popleft()
            if not given.done():
                self._add(size_bytes, 1)
                given.set_result(True)
