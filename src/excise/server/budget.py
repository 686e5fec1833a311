"""How much of answers may lie in memory at once: known before an action runs, so that a thousand reads wait for each other."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from excise.action import Action, Batch, List, Read, Write
from excise.channel import records

MOST_BYTES = 512 << 20
_ORDINARY_BYTES = 64 << 10
_LIST_BYTES = 1 << 20
_DIFF_BYTES = 64 << 20
_LONGEST_READ_BYTES = 256 << 20


class Budget:
    """Of one key. First come, first served; one that is larger than all of it runs alone, and ordinary ones never wait."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, asked: records.Asked) -> AsyncGenerator[None]:
        need = min(needed(asked), self._most)
        if need <= _ORDINARY_BYTES:
            yield
            return
        if self._waiting or self._used + need > self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((need, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(need)
                else:
                    self._waiting.remove((need, turn))
                    self._go_on()
                raise
        else:
            self._used += need
        try:
            yield
        finally:
            self._give_back(need)

    def _give_back(self, count: int) -> None:
        self._used -= count
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._used + self._waiting[0][0] <= self._most:
            need, turn = self._waiting.popleft()
            if not turn.done():
                self._used += need
                turn.set_result(None)


def needed(asked: records.Asked) -> int:
    """What its answer may take at most; of a command, what most take: its `keep` bounds it for each sandbox."""
    match asked:
        case records.Run(_, action):
            return _of_action(action)
        case records.Diff(_, _, contents):
            return _DIFF_BYTES if contents else _LIST_BYTES
        case _:
            return 0


def _of_action(action: Action) -> int:
    match action:
        case Batch(actions):
            return sum(_of_action(one) for one in actions)
        case Read(_, _, length):
            return _LONGEST_READ_BYTES if length is None else min(length, _LONGEST_READ_BYTES)
        case Write(_, data):
            return len(data)
        case List():
            return _LIST_BYTES
        case _:
            return _ORDINARY_BYTES
