"""The server's end of one client's channel: its calls, each a task, and what becomes of them when the client is away."""

import asyncio
import contextvars
from collections.abc import Callable

from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.flow import Incoming, Outgoing
from excise.channel.frames import Header, ProtocolError
from excise.channel.packing import packed
from excise.channel.refusal import Refused, refusal
from excise.clock import now_ns
from excise.errors import SpecError
from excise.server.budget import Budget
from excise.server.calls import Work, carried_out, verb_of
from excise.server.host import Host, Refusal
from excise.server.keys import Key
from excise.server.rate import Rate

MOST_CALLS = 4096
"""At once, of one client."""
MOST_CREATE_BYTES = 16 << 20
"""What a sandbox is made of is kept for as long as it lives."""
_ONCE = (records.Upload, records.Download, records.Close)
_READS = (records.Start, records.Upload, records.Connect, records.Long)
"""Bytes come within them."""
PATIENCE_S = 60.0
"""How long a client may be away before what it waits for is given up."""


class Call:
    """One call, as frames change it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        self.channel = channel
        self.begun_ns = now_ns()
        self.inner_ns = 0
        self.outgoing = Outgoing(channel, number)
        self.incoming = Incoming(channel, number)
        self.task: asyncio.Task[None] | None = None
        self.tells: Callable[[records.Told], None] | None = None
        self.left_bytes: int | None = None

    def announced(self, count: int) -> None:
        """So many bytes came within it: of a long one, no more than it said."""
        if self.left_bytes is not None:
            self.left_bytes -= count
            if self.left_bytes < 0:
                raise ProtocolError("more bytes than were announced")

    def started(self) -> None:
        self.channel.send(frames.STARTED, self.number)


class Session:
    """A client's. It outlives connections for PATIENCE_S."""

    def __init__(self, host: Host, key: Key, budget: Budget, rate: Rate, ended: Callable[["Session"], None]) -> None:
        self.key = key
        self.channel = Channel(self, frames.FROM_CLIENT)
        self._host = host
        self._budget = budget
        self._rate = rate
        self._ended = ended
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._loop = asyncio.get_running_loop()
        self._away: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Its client is away, and waits for nothing."""
        return not self.channel.is_connected and not self._calls and not self.channel.kept_bytes

    # ---- what the channel tells

    def connected(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def broken(self, reason: str) -> None:
        self._away = self._loop.call_later(PATIENCE_S, self.channel.fail, f"its client was away for {PATIENCE_S:g} s")

    def lost(self, reason: str) -> None:
        """Nobody will hear what comes of its calls: they are ended. Its sandboxes have their leases."""
        self.connected()
        for call in tuple(self._calls.values()):
            call.outgoing.end()
            call.incoming.drop()
            if call.task is not None:
                call.task.cancel()
        self._ended(self)

    def drained(self) -> None:
        for call in self._calls.values():
            call.outgoing.wake()

    def received(self, head: Header, payload: bytes) -> None:
        if head.type == frames.CALL:
            self._begin(head.call, payload)
            return
        if head.type == frames.BYE:
            self.channel.fail("its client has left")
            return
        call = self._calls.get(head.call)
        if call is None:
            if 0 < head.call <= self._last:
                return  # on its way when the call was answered
            raise ProtocolError(f"a frame of type {head.type} for a call that was not made")
        match head.type:
            case frames.DATA:
                call.announced(len(payload))
                call.incoming.came(payload, head.flags)
            case frames.CREDIT:
                call.outgoing.granted(frames.granted(payload))
            case frames.EOF:
                call.incoming.end()
            case frames.TELL:
                self._tell(call, payload)
            case _:
                self._cancel(call)

    def _begin(self, number: int, payload: bytes) -> None:
        if number <= self._last:
            raise ProtocolError(f"call {number} after call {self._last}")
        self._last = number
        call = Call(self.channel, number)
        if len(self._calls) >= MOST_CALLS:
            self._refuse(call, Refused("capacity", f"{MOST_CALLS} calls are in flight: wait for one", retry_s=0.1))
            return
        try:
            asked = records.asked(payload)
        except Exception as error:  # noqa: BLE001 - a record that says what it cannot mean is its sender's to mend
            self._refuse(call, _unreadable(error))
            return
        # What a client could not ask again, for its stream has begun, is not held back.
        if not isinstance(asked, _ONCE) and (wait_s := self._rate.wait_s(self._loop.time())) > 0:
            self._host.figures.refused["rate"] += 1
            text = f"the key {self.key.name} may make {self.key.rate:g} calls a second"
            self._refuse(call, Refused("capacity", text, retry_s=wait_s))
            return
        self._calls[number] = call
        if isinstance(asked, records.Long) and not 0 < asked.size_bytes <= frames.MAX_LONG:
            self._refuse(call, Refused("spec", f"a call of {asked.size_bytes} bytes is too long: send it as a file"))
            return
        if isinstance(asked, records.Long):
            call.left_bytes = asked.size_bytes
        if not isinstance(asked, _READS):
            call.incoming.drop()  # nobody will take what comes within it
        work = self._long(call, asked.size_bytes) if isinstance(asked, records.Long) else self._work(call, asked)
        call.task = self._loop.create_task(work, context=contextvars.Context())
        call.task.add_done_callback(lambda _: self._never_begun(call))

    def _tell(self, call: Call, payload: bytes) -> None:
        try:
            told: records.Told = records.told(payload)
        except Exception as error:  # noqa: BLE001 - as above
            raise ProtocolError(f"something told that cannot be read: {error}") from None
        if call.tells is not None:
            call.tells(told)

    def _cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()

    # ---- carrying it out

    def _never_begun(self, call: Call) -> None:
        """A task that is cancelled before its first turn has said nothing."""
        if call.number in self._calls:
            self._refuse(call, Refused("cancelled", "it was cancelled"))

    async def _long(self, call: Call, size_bytes: int) -> None:
        """One that comes in its own bytes: they are let in once there is room for all of them."""
        why = Refused("cancelled", "it was cancelled before it was all there")
        try:
            with self._budget.stream():
                async with self._budget.hold(size_bytes):
                    asked = await _whole(call.incoming, size_bytes)
                    call.incoming.drop()
                    call.begun_ns = now_ns()
                    await self._work(call, asked, size_bytes)
            return
        except asyncio.CancelledError:
            pass
        except Refusal as error:
            why = error.refused
        except Exception as error:  # noqa: BLE001 - a record that says what it cannot mean is its sender's to mend
            why = _unreadable(error)
        self._refuse(call, why)

    async def _work(self, call: Call, asked: records.Asked, held: int = 0) -> None:
        """`held`: of its key's budget."""
        verb = verb_of(asked)
        try:
            work = Work(self._host, self.key, call)
            await carried_out(work, self._budget, asked, lambda value: self._send(call, value), held)
            self._host.figures.calls[verb, "ok"] += 1
            return
        except asyncio.CancelledError:
            why = Refused("cancelled", "it was cancelled")
        except Refusal as error:
            why = error.refused
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told, and the others are not disturbed
            why = refusal(error, "the server")
        self._host.figures.calls[verb, why.kind] += 1
        self._refuse(call, why)

    async def _send(self, call: Call, value: records.Value) -> None:
        """The answer; a long one as its client takes it, and any where its client has much to take already."""
        server_ns, inner_ns = now_ns() - call.begun_ns, call.inner_ns
        data = packed(records.Answer(value, server_ns, inner_ns))
        if len(data) > frames.SHORT_BYTES:
            whole = packed(value)
            with self._budget.charged(len(whole)):
                if not await call.outgoing.write(whole):
                    return
            data = packed(records.Answer(records.Long(len(whole)), server_ns, inner_ns))
        elif self.channel.is_full and not await call.outgoing.room():
            return
        self._calls.pop(call.number, None)
        self.channel.send(frames.ANSWER, call.number, data)

    def _refuse(self, call: Call, refused: Refused) -> None:
        self._calls.pop(call.number, None)
        answer = records.Answer(refused, now_ns() - call.begun_ns, call.inner_ns)
        self.channel.send(frames.ANSWER, call.number, packed(answer))

    def close(self, reason: str) -> None:
        """Good-bye: the client hears why."""
        self.channel.finish(reason)


async def _whole(incoming: Incoming, size_bytes: int) -> records.Asked:
    """The call itself, out of its bytes."""
    data = bytearray()
    while len(data) < size_bytes:
        piece = await incoming.take()
        if piece is None:
            raise SpecError(f"{len(data)} of its {size_bytes} bytes came")
        data += piece[1]
    asked: records.Asked = records.asked_at_length(bytes(data))
    if isinstance(asked, records.Create) and size_bytes > MOST_CREATE_BYTES:
        raise SpecError(f"a spec has at most {MOST_CREATE_BYTES} bytes: upload what is longer")
    return asked


def _unreadable(error: Exception) -> Refused:
    return Refused("spec", f"the call cannot be read: {error}")
