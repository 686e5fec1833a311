"""How much of one key's may lie in memory at once: known before an action runs, so that a thousand reads wait for each other.

Three things are counted. Bytes: what a call may bring (a long one) or answer. Calls that have a window of bytes in either
direction, whoever reads or does not. Commands at once: what each keeps of its output by default is not reserved, for most
print next to nothing and a thousand sandboxes run for hours; so their number is bounded, and what they did print is counted
until it was taken.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from excise.action import Action, Batch, Exec, Keep, List, Read, Shell, Write
from excise.channel import records
from excise.channel.refusal import Refused
from excise.server.host import Refusal

MOST_BYTES = 512 << 20
MOST_STREAMS = 2048
FEWEST_COMMANDS = 256
COMMANDS_OF_ONE = 4
"""At once, for each sandbox that a key may have."""
MOST_KEPT_BYTES = 128 << 20
"""Of each stream of a command's output, however much it is told to keep."""
_USUAL = Keep()
_ORDINARY_BYTES = 64 << 10
_LIST_BYTES = 1 << 20
_DIFF_BYTES = 64 << 20
_LONGEST_READ_BYTES = 256 << 20
_SHORT_READ_BYTES = 1 << 20
_RETRY_S = 0.1
_STREAMS = (records.Start, records.Upload, records.Download, records.Connect)


class Budget:
    """Of one key. First come, first served; one that is larger than all of it runs alone."""

    def __init__(self, most_bytes: int = MOST_BYTES, sandboxes: int = 64) -> None:
        self._most = most_bytes
        self._most_commands = max(FEWEST_COMMANDS, COMMANDS_OF_ONE * sandboxes)
        self._used = 0
        self._streams = 0
        self._commands = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used

    @asynccontextmanager
    async def of(self, asked: records.Asked, held: int = 0) -> AsyncGenerator[None]:
        """While it is carried out and its answer is taken. `held`: so much of it is reserved already; who holds some waits for
        no more, for others may hold what it waits for: it is asked again."""
        need = min(needed(asked), self._most)
        commands = self.enter(asked)
        try:
            if held:
                with self._more(need - held):
                    yield
            elif not need or self.is_easy(asked):
                yield
            else:
                async with self.hold(need):
                    yield
        finally:
            self.leave(asked, commands)

    def is_easy(self, asked: records.Asked) -> bool:
        """Whether it has to wait for nobody, as nearly all: `enter` and `leave` are all there is to it.

        What is reserved may be all there is for as long as a client does not read: who asks for little is not held up by it.
        """
        return self._used <= 2 * self._most and needed(asked) <= _ORDINARY_BYTES

    def leave(self, asked: records.Asked, commands: int) -> None:
        self._commands -= commands
        self._streams -= isinstance(asked, _STREAMS)

    def enter(self, asked: records.Asked) -> int:
        """Among the calls that have a window, or the commands: refused if there are too many. How many commands it has."""
        if isinstance(asked, _STREAMS):
            self._require_stream()
            self._streams += 1
            return 0
        commands = _commands(asked.action) if isinstance(asked, records.Run) else 0
        if commands and self._commands and self._commands + commands > self._most_commands:
            text = f"{self._commands} commands of this key run at once: wait for one"
            raise Refusal(Refused("capacity", text, retry_s=_RETRY_S))
        self._commands += commands
        return commands

    def _require_stream(self) -> None:
        if self._streams >= MOST_STREAMS:
            text = f"{MOST_STREAMS} calls of this key have bytes on their way: wait for one"
            raise Refusal(Refused("capacity", text, retry_s=_RETRY_S))

    @contextmanager
    def _more(self, count: int) -> Generator[None]:
        """Who holds some does not wait."""
        if count > 0 and self._used + count > self._most:
            raise Refusal(Refused("capacity", "its answer may be longer than there is room for now", retry_s=_RETRY_S))
        with self.charged(max(0, count)):
            yield

    @contextmanager
    def stream(self) -> Generator[None]:
        """One more window of bytes."""
        self._require_stream()
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @contextmanager
    def charged(self, count: int) -> Generator[None]:
        """What is there already: it waits for nobody, and others wait for it."""
        self._used += count
        try:
            yield
        finally:
            self._give_back(count)

    @asynccontextmanager
    async def hold(self, need: int) -> AsyncGenerator[None]:
        """So many bytes, once there is room for them."""
        need = min(need, self._most)
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
        while self._waiting and (not self._used or self._used + self._waiting[0][0] <= self._most):
            need, turn = self._waiting.popleft()
            if not turn.done():
                self._used += need
                turn.set_result(None)


def _commands(action: Action) -> int:
    match action:
        case Exec() | Shell():
            return 1
        case Batch(actions):
            return sum(isinstance(one, Exec | Shell) for one in actions)
        case _:
            return 0


def bounded(asked: records.Asked) -> records.Asked:
    """The same, but that no command keeps more of its output than there is room for; what is dropped is counted, as ever."""
    if not isinstance(asked, records.Run):
        return asked
    action = _bounded(asked.action)
    return asked if action is asked.action else msgspec.structs.replace(asked, action=action)


def _bounded(action: Action) -> Action:
    match action:
        case Exec() | Shell() if _kept(action.keep) > MOST_KEPT_BYTES:
            head = min(max(0, action.keep.head_bytes), MOST_KEPT_BYTES)
            return msgspec.structs.replace(action, keep=Keep(head, min(max(0, action.keep.tail_bytes), MOST_KEPT_BYTES - head)))
        case Batch(actions) if any(_kept(one.keep) > MOST_KEPT_BYTES for one in actions if isinstance(one, Exec | Shell)):
            return msgspec.structs.replace(action, actions=tuple(_bounded(one) for one in actions))
        case _:
            return action


def _kept(keep: Keep) -> int:
    return max(0, keep.head_bytes) + max(0, keep.tail_bytes)


def short_first(asked: records.Asked) -> records.Asked | None:
    """For a read of a whole file, which is short as a rule: one of its first bytes, that says whether it is."""
    if isinstance(asked, records.Run) and isinstance(asked.action, Read) and asked.action.length is None:
        return msgspec.structs.replace(asked, action=msgspec.structs.replace(asked.action, length=_SHORT_READ_BYTES))
    return None


def is_whole(value: records.Value) -> bool:
    """Whether such a first read had all there is."""
    return not isinstance(value, records.Seen) or len(value.observation.stdout) < _SHORT_READ_BYTES


def needed(asked: records.Asked) -> int:
    """What its answer may take at most; of a command that keeps what commands keep, what most take."""
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
            return _LONGEST_READ_BYTES if length is None else min(max(0, length), _LONGEST_READ_BYTES)
        case Write(_, data):
            return len(data)
        case List():
            return _LIST_BYTES
        case Exec() | Shell() if _kept(action.keep) > _kept(_USUAL):
            return len(action.stdin) + (1 if action.merge or action.pty else 2) * min(_kept(action.keep), MOST_KEPT_BYTES)
        case Exec() | Shell():
            return _ORDINARY_BYTES + len(action.stdin)
        case _:
            return _ORDINARY_BYTES
