"""One action in flight: what it may still send, what it was sent, and how it ended."""

import asyncio
import math
from typing import NamedTuple

from excise.action import End, Keep
from excise.errors import ExciseError, SandboxLost, SpecError
from excise.guest import wire
from excise.guest.link import Link
from excise.output import Kept

KILL_S = 15.0
"""How long a guest may take to kill before it counts as gone, and the sandbox with it."""
BACKSTOP_S = 10.0
"""How long after an action's timeout, which is the guest's to keep, it is killed from this side."""
_GRANT_BYTES = wire.WINDOW // 2
_LONGEST_REASON = 2000
_KILLED = wire.Ended(End.SIGNALED, True, False, False, None, 9, 0, 0, None, None)
_OVERDUE = wire.Ended(End.TIMED_OUT, False, False, False, None, 0, 0, 0, None, None)


class Request(NamedTuple):
    """An action as frames will carry it."""

    type: int
    fields: bytes
    flags: int = 0
    stdin: bytes | None = None
    """All that it will be sent; None: nothing, or what the caller will write."""
    timeout_s: float | None = None


class Exchange:
    """What the link's callbacks do to an action; what is done with its output is its subclasses'."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.id = 0
        self.loop = asyncio.get_running_loop()
        self.end: wire.Ended | None = None
        self.refusal: wire.Refusal | None = None
        self.over = False
        """It ended, was refused or is lost."""
        self._waiter: asyncio.Future[None] | None = None
        self._room = [0, wire.WINDOW, wire.WINDOW]
        self._owed = [0, 0, 0]
        self._stdin_room = wire.WINDOW
        self._stdin = memoryview(b"")
        self._eof = False
        self._written: asyncio.Future[bool] | None = None
        self._killed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = False

    # ---- beginning

    def opening(self, id: int, request: Request, flags: int = 0) -> bytes:
        """The bytes that begin it, with as much of its stdin as the guest takes unasked."""
        self.id = id
        begin = wire.request(request.type, id, self.link.epoch, request.fields, request.flags | flags)
        if request.stdin is None:
            return begin
        stdin = memoryview(request.stdin)
        now, self._stdin = stdin[: wire.WINDOW], stdin[wire.WINDOW :]
        self._stdin_room -= len(now)
        frames = [begin, *wire.data_frames(id, self.link.epoch, now)]
        if self._stdin:
            self._eof = True
        else:
            frames.append(wire.frame(wire.EOF, id, self.link.epoch))
        return b"".join(frames)

    def arm(self, timeout_s: float) -> None:
        """Its timeout is the guest's to keep; should it not, it is killed from here."""
        if math.isfinite(timeout_s):
            self._timer = self.loop.call_later(timeout_s + BACKSTOP_S, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.link.paused:
            self._timer = self.loop.call_later(BACKSTOP_S, self._late)
            return
        self._overdue = True
        self.order_kill()

    # ---- what the link tells

    def output(self, stream: int, data: bytes) -> None:
        room = self._room[stream] - len(data)
        if room < 0:
            raise wire.ProtocolError(f"{-room} bytes more than it had credit for")
        self._room[stream] = room
        if self.end is None:
            self.keep(stream, data)

    def keep(self, stream: int, data: bytes) -> None:
        raise NotImplementedError

    def consumed(self, stream: int, count: int) -> None:
        """So many bytes have been used up: the guest may send as many again, told in a few large pieces."""
        owed = self._owed[stream] + count
        if owed >= _GRANT_BYTES and self.end is None:
            self._room[stream] += owed
            self.link.grant(self.id, stream, owed)
            owed = 0
        self._owed[stream] = owed

    def credited(self, count: int) -> None:
        self._stdin_room += count
        self.pump()

    def started(self) -> None:
        """Only who asks to be told waits for it."""

    def ended(self, how: wire.Ended) -> bool:
        self._finish(how)
        return self._killed is None or self._killed.done()

    def refused(self, why: wire.Refusal) -> bool:
        self.refusal = why._replace(reason=why.reason[:_LONGEST_REASON])
        return self.ended(_KILLED)

    def killed(self) -> bool:
        if self._killed is None or self._killed.done():
            raise wire.ProtocolError(f"that action {self.id} is killed, which nobody asked for")
        over = self.end is not None  # else the guest still owes its end, which is not waited for
        self._killed.set_result(None)
        self._finish(_OVERDUE if self._overdue else _KILLED)
        return over

    def lost(self) -> None:
        if self._killed is not None and not self._killed.done():
            self._killed.set_result(None)
        self._finish(None)

    def _finish(self, how: wire.Ended | None) -> None:
        if self._timer is not None and (self._killed is None or self._killed.done()):
            self._timer.cancel()
            self._timer = None
        if self.end is None:
            self.end = how
        self.over = True
        if self._written is not None and not self._written.done():
            self._written.set_result(False)
        self._stdin = memoryview(b"")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- its stdin

    def pump(self) -> None:
        """Send as much of what waits as the guest has room for."""
        while self._stdin:
            if not self._stdin_room:
                return
            if self.link.full:
                self.link.call_when_drained(self)
                return
            piece = self._stdin[: min(self._stdin_room, wire.MAX_PAYLOAD)]
            self._stdin = self._stdin[len(piece) :]
            self._stdin_room -= len(piece)
            self.link.send(wire.frame(wire.DATA, self.id, self.link.epoch, bytes(piece)))
        if self._eof:
            self._eof = False
            self.link.send(wire.frame(wire.EOF, self.id, self.link.epoch))
        if self._written is not None and not self._written.done():
            self._written.set_result(True)

    async def write(self, data: bytes) -> None:
        """Hand over `data`; returns when the guest had room for all of it. One at a time."""
        taken = False
        if not self.over:
            self._stdin = memoryview(data)
            self._written = self.loop.create_future()
            self.pump()
            try:
                taken = await self._written
            finally:
                self._stdin, self._written = memoryview(b""), None
        if not taken:
            raise BrokenPipeError("this process has ended and reads no more")

    def close_stdin(self) -> None:
        if not self.over:
            self._eof = True
            self.pump()

    # ---- its end

    async def finished(self) -> wire.Ended:
        """How it ended; SandboxLost if there is nobody any more who could say so."""
        if not self.over:
            self._waiter = self.loop.create_future()  # not shielded: it is made for this one wait, and costs no extra turn
            await self._waiter
        return self.outcome()

    def outcome(self) -> wire.Ended:
        if self.refusal is not None:
            raise _refused(self.refusal)
        if self.end is None:
            raise SandboxLost(self.link.reason or "the sandbox was reset while the action ran")
        return self.end

    def order_kill(self) -> None:
        """Ask for the end of everything it started. A guest that does not answer is gone, and then so is all of it."""
        if self._killed is not None or self.link.reason is not None:
            return
        if self.over and (self.end is None or not self.end.still_running):
            return
        self._killed = self.loop.create_future()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(KILL_S, self._unanswered)
        self.link.watch(self.id, self)
        self.link.send(wire.frame(wire.KILL, self.id, self.link.epoch))

    def _unanswered(self) -> None:
        if self.link.paused:
            self._timer = self.loop.call_later(KILL_S, self._unanswered)
        else:
            self.link.fail(f"the guest did not answer a kill in {KILL_S:g} s")

    async def kill(self) -> None:
        """Returns when everything it started is dead."""
        self.order_kill()
        if self._killed is not None:
            await asyncio.shield(self._killed)


class Collected(Exchange):
    """Consumes its own output, keeping of each stream what its caller wants."""

    def __init__(self, link: Link, keep: Keep, most_bytes: int | None = None) -> None:
        """`most_bytes`: no honest guest sends more."""
        super().__init__(link)
        self._keep = keep
        self._most_bytes = most_bytes
        self._kept: dict[int, Kept] = {}

    def keep(self, stream: int, data: bytes) -> None:
        if self._most_bytes is not None:
            self._most_bytes -= len(data)
            if self._most_bytes < 0:
                raise wire.ProtocolError(f"{-self._most_bytes} bytes more than were asked for")
        kept = self._kept.get(stream)
        if kept is None:
            kept = self._kept[stream] = Kept(self._keep)
        kept.feed(data)
        self.consumed(stream, len(data))

    def bytes(self, stream: int) -> bytes:
        kept = self._kept.get(stream)
        return b"" if kept is None else kept.bytes()

    @property
    def dropped_bytes(self) -> int:
        return sum(kept.dropped_bytes for kept in self._kept.values())


class Held(Exchange):
    """Holds its output until somebody takes it: at most a window of each stream, for without credit no more may come."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._held = {wire.STDOUT: bytearray(), wire.STDERR: bytearray()}
        self._woken: asyncio.Future[None] | None = None
        self._begun: asyncio.Future[None] = self.loop.create_future()

    def keep(self, stream: int, data: bytes) -> None:
        self._held[stream] += data
        self._wake()

    def started(self) -> None:
        if self._begun.done():
            raise wire.ProtocolError(f"that action {self.id} began a second time")
        self._begun.set_result(None)

    def _finish(self, how: wire.Ended | None) -> None:
        super()._finish(how)
        if not self._begun.done():
            self._begun.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def begun(self) -> None:
        """Returns when its program runs, or has ended; raises why it could not be begun."""
        await asyncio.shield(self._begun)
        if self.over and (self.end is None or self.refusal is not None):
            self.outcome()

    async def take(self) -> tuple[int, bytes] | None:
        """The next piece of output; None at the end. Cancelling it loses nothing."""
        while True:
            for stream, held in self._held.items():
                if held:
                    data = bytes(held)
                    held.clear()
                    self.consumed(stream, len(data))
                    return stream, data
            if self.over:
                self.outcome()
                return None
            self._woken = self.loop.create_future()
            await self._woken


def _refused(why: wire.Refusal) -> ExciseError:
    """Nothing was started: for what was asked, which the caller can mend, or for want of something of the machine's."""
    if not why.errno:
        return SpecError(why.reason)
    return SandboxLost(f"this machine could not start the action ({why.reason}): `ulimit -a` and free memory tell what ran out")
