"""A channel over connections that break anywhere: every frame once, in order, or the end of it."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.channel import frames
from excise.channel.channel import FULL_BYTES, Channel
from excise.channel.frames import FROM_CLIENT, FROM_SERVER, Header


class Wire(asyncio.Transport):
    """A connection as one end sees it: what it writes waits until it is carried over, or is lost when it is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = bytearray()
        self.gone = False

    def write(self, data: Any) -> None:
        if not self.gone:
            self.waiting += data

    def abort(self) -> None:
        self.gone = True

    close = abort


class End:
    """One end, and what it was told."""

    def __init__(self, known: dict[int, tuple[int, int]]) -> None:
        self.channel = Channel(self, known)
        self.wire = Wire()
        self.told: list[bytes] = []
        self.why: str | None = None

    def received(self, head: Header, payload: bytes) -> None:
        self.told.append(payload)

    def drained(self) -> None: ...
    def broken(self, reason: str) -> None: ...
    def lost(self, reason: str) -> None:
        self.why = reason


def joined(one: End, other: End) -> None:
    """A new connection, as the handshake makes it."""
    theirs = (other.channel.had, one.channel.had)
    one.wire, other.wire = Wire(), Wire()
    one.channel.connect(one.wire, theirs[0])
    other.channel.connect(other.wire, theirs[1])


def carried(sender: End, receiver: End, count: int) -> None:
    piece = bytes(sender.wire.waiting[:count])
    del sender.wire.waiting[:count]
    receiver.channel.take(piece)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.booleans(), st.integers(1, 300)),
        st.tuples(st.just("carry"), st.booleans(), st.integers(1, 500)),
        st.tuples(st.just("cut"), st.booleans(), st.integers(0, 0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_frame_once_and_in_order_whatever_breaks(steps: list[tuple[str, bool, int]]) -> None:
    client, server = End(FROM_SERVER), End(FROM_CLIENT)
    joined(client, server)
    sent: dict[bool, list[bytes]] = {True: [], False: []}
    for what, mine, count in steps:
        one, other = (client, server) if mine else (server, client)
        if what == "send":
            payload = len(sent[mine]).to_bytes(4, "big") + b"x" * count
            sent[mine].append(payload)
            one.channel.send(frames.DATA, 1, payload)
        elif what == "carry":
            carried(one, other, count)
        else:
            joined(client, server)
    joined(client, server)
    for _ in range(3):
        carried(client, server, 1 << 30)
        carried(server, client, 1 << 30)
    assert server.told == sent[True]
    assert client.told == sent[False]
    assert (client.why, server.why) == (None, None)


def test_what_was_seen_is_not_kept() -> None:
    client, server = End(FROM_SERVER), End(FROM_CLIENT)
    joined(client, server)
    for _ in range(1000):
        client.channel.send(frames.DATA, 1, b"x" * 1000)
        carried(client, server, 1 << 30)
        carried(server, client, 1 << 30)
    assert client.channel.kept_bytes < 100 * 1016


def test_one_who_takes_nothing_is_stopped_in_bounded_memory() -> None:
    client = End(FROM_SERVER)
    while client.why is None:
        client.channel.send(frames.DATA, 1, b"x" * frames.MAX_PAYLOAD)
        assert client.channel.kept_bytes <= 33 << 20
        assert client.channel.is_full == (client.channel.kept_bytes >= FULL_BYTES)
    assert "takes nothing" in client.why
    assert client.channel.kept_bytes == 0


@pytest.mark.parametrize("theirs", [-1, 2, 10**9])
def test_who_had_more_than_was_sent_is_not_believed(theirs: int) -> None:
    client = End(FROM_SERVER)
    client.channel.send(frames.DATA, 1, b"x")
    client.channel.connect(Wire(), theirs)
    assert client.why is not None


@given(st.binary(max_size=400))
def test_no_bytes_do_more_than_end_it(data: bytes) -> None:
    server = End(FROM_CLIENT)
    server.channel.connect(server.wire, 0)
    for at in range(0, len(data), 7):
        server.channel.take(data[at : at + 7])
    assert server.why is None or "broke the protocol" in server.why


@given(st.integers(0, 255), st.integers(0, 1 << 20), st.integers(0, 1 << 32 - 1), st.integers(0, 255), st.integers(0, 65535))
def test_headers_are_bounded(kind: int, length: int, call: int, flags: int, zero: int) -> None:
    import struct

    packed = struct.pack("<IIIBBH", length, call, 0, kind, flags, zero)
    try:
        head = frames.header(packed, 0, FROM_CLIENT)
    except frames.ProtocolError:
        return
    assert kind in FROM_CLIENT
    assert FROM_CLIENT[kind][0] <= head.length <= FROM_CLIENT[kind][1] <= frames.MAX_PAYLOAD
