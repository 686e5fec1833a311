"""Our end of a channel to a server: calls, and connections that are made again when they break."""

import asyncio
import contextlib
import contextvars
import random
import secrets
import ssl
from typing import Any

from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.frames import Header, ProtocolError
from excise.channel.packing import packed
from excise.channel.refusal import Refused, as_exception
from excise.clock import now_ns
from excise.errors import CapacityError, ExciseError, SandboxLost, SubstrateError
from excise.handles import finish
from excise.substrates.remote.call import Call
from excise.substrates.remote.dial import Dialled, Reply, dial
from excise.substrates.remote.where import Where, key_for
from excise.trace import note_span

PATIENCE_S = 60.0
"""How long a channel is kept without a connection; a server that keeps it for less says so."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_LAST_WORDS_S = 15.0
"""For a server to say that what was cancelled is over."""
_SWITCHED, _GONE = 101, 410
_BUSY = (429, 503)


class Client:
    """All that one substrate asks of its server goes over one channel at a time."""

    def __init__(self, there: Where, key: str | None = None) -> None:
        self._there = there
        self._key = key
        self._channel: Channel | None = None
        self._id = ""
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._connecting: asyncio.Task[None] | None = None
        self._dialled: Dialled | None = None
        self._room: list[asyncio.Future[None]] = []
        """Who waits to send a call."""
        self._patience_s = PATIENCE_S
        self._closed = False

    # ---- calls

    async def ask(self, asked: records.Asked, *, deadline_s: float | None = None) -> Any:
        """What the server answers; its refusal is raised. One that says "later" was not carried out, and is asked again."""
        ends_s = asyncio.get_running_loop().time() + (PATIENCE_S if deadline_s is None else deadline_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            answered = await self._ask(asked, ends_s)
            if not isinstance(answered, Refused):
                return answered
            pause_s = await later(ends_s, pause_s, answered)

    async def started(self, asked: records.Asked) -> Call:
        """A call whose bytes are the caller's, once it has begun; asked again as above."""
        ends_s, pause_s = asyncio.get_running_loop().time() + PATIENCE_S, _FIRST_PAUSE_S
        while True:
            call = await self.begin(asked, ends_s, streams=True)
            try:
                await call.started
            except asyncio.CancelledError:
                await finish(self.cancel(call))
                raise
            if call.final is None or not isinstance(call.final.value, Refused):
                return call
            pause_s = await later(ends_s, pause_s, call.final.value)

    async def _ask(self, asked: records.Asked, ends_s: float | None) -> Any:
        begun_ns = now_ns()
        call = await self.begin(asked, ends_s, streams=False)
        answer = await self.ended(call)
        _note(asked, answer, begun_ns)
        return answer.value

    async def begin(self, asked: records.Asked, ends_s: float | None = None, *, streams: bool) -> Call:
        """Send a call; it is on its way when this returns. `streams`: its bytes are for the caller."""
        channel = self._channel
        while channel is None or channel.reason is not None or channel.is_full:
            if channel is None or channel.reason is not None:
                channel = await self._open(ends_s)
            else:
                await self._some_room()
                channel = self._channel
        number, self._next = self._next, self._next + 1
        call = Call(channel, number, streams=streams)
        record = packed(asked)
        self._calls[number] = call
        if len(record) <= frames.SHORT_BYTES:
            channel.send(frames.CALL, number, record)
            return call
        channel.send(frames.CALL, number, packed(records.Long(len(record))))
        try:
            await call.outgoing.write(record)  # False: it was refused, which its answer says
        except asyncio.CancelledError:
            await finish(self.cancel(call))
            raise
        return call

    async def _some_room(self) -> None:
        """A thousand calls at once are more than may be on their way: who has not begun yet waits."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiting)
        await waiting

    def _tell_room(self) -> None:
        waiting, self._room = self._room, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def ended(self, call: Call) -> records.Answer:
        """Its answer. Cancelled, it is so at the server before this returns, and what it made meanwhile is closed."""
        try:
            return await call.answer  # not shielded: it is made for this one wait
        except asyncio.CancelledError:
            await finish(self.cancel(call))
            raise

    async def cancel(self, call: Call) -> None:
        """Until the server says that it is over."""
        if call.final is None and self._channel is not None:
            call.answer = asyncio.get_running_loop().create_future()  # the one before was cancelled with who waited for it
            self._channel.send(frames.CANCEL, call.number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await call.answer
        if call.final is not None and isinstance(call.final.value, records.Made):
            with contextlib.suppress(ExciseError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self.ask(records.Close(call.final.value.id))

    def tell(self, call: Call, told: records.Told) -> None:
        if self._channel is not None and call.number in self._calls:
            self._channel.send(frames.TELL, call.number, packed(told))

    def end_of_data(self, call: Call) -> None:
        if self._channel is not None and call.number in self._calls:
            self._channel.send(frames.EOF, call.number)

    # ---- what the channel tells

    def received(self, head: Header, payload: bytes) -> None:
        if head.type == frames.BYE:
            assert self._channel is not None
            self._channel.fail(payload.decode("utf-8", "replace")[:500] or "the server ended the channel")
            return
        call = self._calls.get(head.call)
        if call is None:
            if head.type == frames.CREDIT and 0 < head.call < self._next:
                return  # on its way when the call ended
            raise ProtocolError(f"a frame of type {head.type} for call {head.call}, which does not wait for one")
        if call.received(head, payload):
            del self._calls[head.call]

    def drained(self) -> None:
        self._tell_room()
        for call in self._calls.values():
            call.outgoing.wake()

    def broken(self, reason: str) -> None:
        """Calls in flight wait for a new connection, which is made now."""
        if not self._closed and (self._connecting is None or self._connecting.done()):
            loop = asyncio.get_running_loop()
            self._connecting = loop.create_task(self._reconnect(reason), context=contextvars.Context())

    def lost(self, reason: str) -> None:
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()  # the connection it makes would be nobody's
            self._connecting = None
        self._tell_room()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lost(f"{self._there.url}: {reason}")

    # ---- connections

    async def _open(self, ends_s: float | None) -> Channel:
        """A channel, made now unless somebody else is making it."""
        if self._closed:
            raise SubstrateError(f"{self._there.url} was closed here; connect to it again")
        if self._connecting is None or self._connecting.done():
            loop = asyncio.get_running_loop()
            ends_s = ends_s if ends_s is not None else loop.time() + PATIENCE_S
            self._connecting = loop.create_task(self._connect(ends_s), context=contextvars.Context())
        await asyncio.shield(self._connecting)
        assert self._channel is not None
        if self._channel.reason is not None:
            raise SandboxLost(f"{self._there.url}: {self._channel.reason}")
        return self._channel

    async def _connect(self, ends_s: float) -> None:
        channel_id = secrets.token_hex(16)
        dialled, reply = await self._dial(channel_id, None, ends_s)
        self._id = channel_id
        with contextlib.suppress(ValueError, KeyError):
            self._patience_s = min(PATIENCE_S, float(reply.headers["excise-patience"]))
        self._channel = Channel(self, frames.FROM_SERVER)
        self._calls.clear()
        self._dialled = dialled
        dialled.carry(self._channel, 0)

    async def _reconnect(self, reason: str) -> None:
        channel = self._channel
        assert channel is not None
        loop = asyncio.get_running_loop()
        try:
            dialled, reply = await self._dial(self._id, channel.had, loop.time() + self._patience_s)
        except ExciseError as error:
            channel.fail(f"the connection broke ({reason}), and could not be made again: {error}")
            return
        self._dialled = dialled
        dialled.carry(channel, int(reply.headers["excise-had"]))

    async def _dial(self, channel_id: str, had: int | None, ends_s: float) -> tuple[Dialled, Reply]:
        """A connection, asked for again while there is time and it may help."""
        pause_s = _FIRST_PAUSE_S
        while True:
            failure = SubstrateError(f"{self._there.url} did not answer in time: is `excise serve` running there?")
            retry_s = 0.0
            try:
                async with asyncio.timeout_at(ends_s):
                    dialled, reply = await dial(self._there, self._key or key_for(self._there), channel_id, had)
                if reply.status == _SWITCHED:
                    return dialled, reply
                failure, again = _refused(self._there, reply)
                if not again:
                    raise failure
                retry_s = reply.retry_s or 0.0
            except TimeoutError:
                raise failure from None
            except ssl.SSLError as error:
                raise SubstrateError(_no_tls(self._there, error)) from None  # trying again mends no certificate
            except OSError as error:
                failure = SubstrateError(f"{self._there.url} cannot be reached ({error}): is `excise serve` running there?")
                if had is None:
                    raise failure from None  # a server that was never there: trying again is the caller's choice
            pause_s = await _pause(ends_s, max(retry_s, pause_s), failure)

    # ---- its end

    async def close(self) -> None:
        """Say good-bye; the server closes nothing for it: each sandbox has been, or has its lease."""
        self._closed = True
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._channel is not None:
            self._channel.finish("it was closed here")
        if self._dialled is not None:
            await self._dialled.gone()


async def later(ends_s: float, pause_s: float, refused: Refused) -> float:
    """Wait as long as it said; it is raised if it said nothing, or there is no time. The next pause."""
    if refused.retry_s is None:
        raise as_exception(refused)
    return await _pause(ends_s, max(refused.retry_s, pause_s), as_exception(refused))


async def _pause(ends_s: float, pause_s: float, failure: Exception) -> float:
    """Wait, each time longer and never quite the same; `failure` is raised if there is no time for it. The next pause."""
    wait_s = pause_s * (0.75 + random.random() / 2)  # noqa: S311 - so that a thousand clients do not come back at once
    if asyncio.get_running_loop().time() + wait_s >= ends_s:
        raise failure
    await asyncio.sleep(wait_s)
    return min(2 * pause_s, _LONGEST_PAUSE_S)


def _no_tls(there: Where, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{there.url} shows a certificate that is not trusted here ({error.verify_message}): name its authority by "
            "SSL_CERT_FILE, or call the server by a name that the certificate has"
        )
    return f"what answers at {there.url} speaks no TLS that we do ({error.reason}): is it a server without a certificate?"


def _refused(there: Where, reply: Reply) -> tuple[ExciseError, bool]:
    """Why there is no channel, and whether asking again may help."""
    if reply.status in _BUSY:
        return CapacityError(f"{there.url} has no room for another client: {reply.reason}"), True
    if reply.status == 401:
        return SubstrateError(f"{there.url} does not know this key: set EXCISE_KEY to one that `excise serve` was given"), False
    if reply.status == _GONE:
        return SubstrateError(
            "the server no longer knows of it: it was started anew, or did not hear of us for too long"
        ), False
    if reply.status == 0:
        return SubstrateError(f"what answers at {there.url} is no server of Excise's"), False
    return SubstrateError(f"{there.url} refused: {reply.reason}"), False


def _note(asked: records.Asked, answer: records.Answer, begun_ns: int) -> None:
    """What of a call was the wire, and what the server's own: no clock of the server's is believed, only its durations."""
    whole_ns = now_ns() - begun_ns
    server_ns = max(0, min(answer.server_ns, whole_ns))
    control_ns = max(0, server_ns - answer.inner_ns)
    wire_ns = whole_ns - server_ns
    sandbox: str = getattr(asked, "id", "")
    note_span("wire", sandbox, begun_ns, begun_ns + wire_ns, kind=_kind(asked))
    note_span("control", sandbox, begun_ns + wire_ns, begun_ns + wire_ns + control_ns, kind=_kind(asked))


def _kind(asked: records.Asked) -> str:
    return type(asked).__name__.lower()
