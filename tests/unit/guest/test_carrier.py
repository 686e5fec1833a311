"""The socket under a link: what the other side does not take waits, what it left is read, and its end is told once."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from excise.guest.carrier import SocketCarrier, pair
from excise.guest.link import Link


class Heard:
    """What a carrier told."""

    def __init__(self, carrier: SocketCarrier) -> None:
        self.received = bytearray()
        self.drained = asyncio.Event()
        self.reasons: list[str] = []
        self.over = asyncio.Event()
        carrier.begin(received=self._take, drained=self.drained.set, ended=self._end)

    def _take(self, data: memoryview) -> None:
        self.received += data

    def _end(self, reason: str) -> None:
        self.reasons.append(reason)
        self.over.set()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 20)

    asyncio.run(bounded())


def test_what_is_not_taken_waits_and_goes_in_order() -> None:
    async def scenario() -> None:
        ours, theirs = pair()
        carrier = SocketCarrier(ours)
        heard = Heard(carrier)
        sent = [bytes([n]) * 100_000 for n in range(100)]
        for piece in sent:
            carrier.send(piece)
        assert carrier.waiting_bytes > 0
        theirs.setblocking(False)
        got = bytearray()
        while len(got) < 10_000_000:
            got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        assert got == b"".join(sent)
        await heard.drained.wait()
        assert carrier.waiting_bytes == 0
        carrier.close()
        theirs.close()

    run(scenario())


def test_what_a_peer_said_before_it_went_is_read_though_sending_fails() -> None:
    async def scenario() -> None:
        ours, theirs = pair()
        carrier = SocketCarrier(ours)
        theirs.send(b"last words")
        theirs.close()
        carrier.send(b"to nobody")
        carrier.send(b"to nobody")
        heard = Heard(carrier)
        await heard.over.wait()
        assert bytes(heard.received) == b"last words"
        assert heard.reasons == ["it closed its connection"]

    run(scenario())


def test_a_closed_carrier_tells_nothing_and_hangs_up_even_if_a_fork_holds_its_socket() -> None:
    async def scenario() -> None:
        ours, theirs = pair()
        held = ours.dup()  # as a process forked meanwhile would
        carrier = SocketCarrier(ours)
        heard = Heard(carrier)
        carrier.close()
        carrier.close()
        carrier.send(b"too late")
        theirs.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(theirs, 10) == b""
        assert heard.reasons == []
        held.close()
        theirs.close()

    run(scenario())


def test_a_connection_that_breaks_is_told_with_its_reason() -> None:
    async def scenario() -> None:
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        lost: list[str] = []
        over = asyncio.Event()

        def on_lost(reason: str) -> None:
            lost.append(reason)
            over.set()

        link = Link(SocketCarrier(client), on_lost)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        accepted.close()
        await over.wait()
        assert lost == ["the guest is gone: its connection broke (Connection reset by peer)"]
        assert link.reason == lost[0]
        server.close()

    run(scenario())


@pytest.mark.parametrize("size", [1, 2])
def test_many_carriers_may_share_one_place_to_receive(size: int) -> None:
    async def scenario() -> None:
        scratch = bytearray(size)
        (a, b), (c, d) = pair(), pair()
        first, second = SocketCarrier(a, scratch), SocketCarrier(c, scratch)
        heard = Heard(first), Heard(second)
        for end, text in ((b, b"one"), (d, b"two")):
            end.send(text)
            end.close()
        for one in heard:
            await one.over.wait()
        assert [bytes(one.received) for one in heard] == [b"one", b"two"]

    run(scenario())
