"""One call on its way: its answer, and the bytes in both directions until then."""

import asyncio
from typing import Any

from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.flow import Incoming, Outgoing, Whole
from excise.channel.frames import Header, ProtocolError
from excise.channel.refusal import Refused


class Call:
    """What the channel's frames do to it."""

    def __init__(self, channel: Channel, number: int, *, streams: bool) -> None:
        """`streams`: its bytes are for who made the call; else they are its answer, if that is long."""
        loop = asyncio.get_running_loop()
        self.number = number
        self.outgoing = Outgoing(channel, number)
        self.incoming = Incoming(channel, number) if streams else Whole(channel, number)
        self.started: asyncio.Future[None] = loop.create_future()
        self.answer: asyncio.Future[records.Answer] = loop.create_future()
        self.final: records.Answer | None = None
        """The same, also where nobody waits for it any more."""

    def received(self, head: Header, payload: bytes) -> bool:
        """Whether it is over: nothing more comes."""
        match head.type:
            case frames.DATA:
                self.incoming.came(payload, head.flags)
            case frames.CREDIT:
                self.outgoing.granted(frames.granted(payload))
            case frames.EOF:
                self.incoming.end()
            case frames.STARTED:
                _settle(self.started, None)
            case frames.ANSWER:
                return self._answered(payload)
            case _:
                raise ProtocolError(f"a frame of type {head.type} within a call")
        return False

    def _answered(self, payload: bytes) -> bool:
        try:
            answer: records.Answer = records.answered(payload)
            if isinstance(answer.value, records.Long) and isinstance(self.incoming, Whole):
                answer = records.Answer(records.value(self.incoming.bytes()), answer.server_ns, answer.inner_ns)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it
            raise ProtocolError(f"an answer that cannot be read: {type(error).__name__}: {error}") from None
        self._settle(answer)
        return True

    def _settle(self, answer: records.Answer) -> None:
        self.final = answer
        self.outgoing.end()
        self.incoming.end()
        _settle(self.started, None)
        _settle(self.answer, answer)

    def lost(self, reason: str) -> None:
        self._settle(records.Answer(Refused("lost", reason)))


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)
