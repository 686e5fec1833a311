"""A door, against real sockets: what passes, what is refused, and that nobody can hold or fill it."""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from excise.network.door import CONNECTIONS, LOOKUPS
from excise.network.policy import Address, Policy

from .wires import answers, connected, door, echo, server

HERE = ipaddress.ip_address("127.0.0.1")
NEXT = ipaddress.ip_address("127.0.0.2")


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def to(*ports: int, also: tuple[str, ...] = ()) -> Policy:
    return Policy.allowing(("127.0.0.1", *also), ports)


# ---- what passes


def test_a_tunnel_carries_bytes_both_ways_and_ends_one_way_at_a_time() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far)) as (_, port), connected(port) as client:
            assert await client.tunnel("127.0.0.1", far) == 200
            data = os.urandom(3 << 20)
            client.writer.write(data)
            client.writer.write_eof()
            assert await client.reader.read() == data

    run(main())


def test_what_is_sent_right_behind_the_request_arrives() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far)) as (_, port), connected(port) as client:
            client.writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\nearly".encode())
            client.writer.write_eof()
            assert (await client.reader.read()).endswith(b"\r\n\r\nearly")

    run(main())


def test_a_server_that_ends_first_still_hears_the_client() -> None:
    heard: list[bytes] = []
    over = asyncio.Event()

    async def says_and_listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"said")
        writer.write_eof()
        heard.append(await reader.read())
        over.set()

    async def main() -> None:
        async with server(says_and_listens) as far, door(to(far)) as (_, port), connected(port) as client:
            assert await client.tunnel("127.0.0.1", far) == 200
            assert await client.reader.read() == b"said"
            client.writer.write(b"later")
            client.writer.write_eof()
            await over.wait()
            assert heard == [b"later"]

    run(main())


def test_a_plain_request_is_forwarded() -> None:
    heads: list[bytes] = []

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        assert await reader.readexactly(4) == b"body"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    async def main() -> None:
        async with server(http) as far, door(to(far)) as (_, port), connected(port) as client:
            request = (
                f"PUT http://127.0.0.1:{far}/x HTTP/1.1\r\nProxy-Authorization: Basic c2VjcmV0\r\nContent-Length: 4\r\n\r\nbody"
            )
            assert (await client.ask(request.encode())).endswith(b"\r\n\r\nhi")
            assert heads == [
                f"PUT /x HTTP/1.1\r\nHost: 127.0.0.1:{far}\r\nContent-Length: 4\r\nConnection: close\r\n\r\n".encode()
            ]

    run(main())


def test_socks_by_name_is_looked_up_here() -> None:
    lookup, asked = answers([HERE])

    async def main() -> None:
        async with (
            server(echo) as far,
            door(to(far, also=("far.example",)), lookup=lookup) as (_, port),
            connected(port) as client,
        ):
            client.writer.write(b"\x05\x01\x00")
            assert await client.reader.readexactly(2) == b"\x05\x00"
            client.writer.write(b"\x05\x01\x00\x03\x0bfar.example" + far.to_bytes(2))
            assert (await client.reader.readexactly(10))[:2] == b"\x05\x00"
            client.writer.write(b"over socks")
            assert await client.reader.readexactly(10) == b"over socks"

    run(main())
    assert asked == ["far.example"]


# ---- what is refused


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.2", b"127.0.0.2 is this host's own; list that very address in Allow(hosts, ports) to reach it"),
        ("10.0.0.1", b"10.0.0.1 is private; list the address, or a block of that range, in Allow(hosts, ports)"),
        ("169.254.169.254", b"169.254.169.254 is link-local;"),
        ("[::ffff:169.254.169.254]", b"169.254.169.254 is link-local;"),
        ("[::1]", b"::1 is this host's own;"),
        ("[fd00::99]", b"fd00::99 "),
        ("100.64.0.1", b"100.64.0.1 is shared (carrier-grade NAT);"),
        ("0.0.0.0", b"0.0.0.0 is "),  # noqa: S104 - to connect to
        ("2130706433", b"2130706433 leads to 127.0.0.1, which is this host's own;"),
        ("127.1", b"127.1 leads to 127.0.0.1, which is this host's own;"),
        ("0x7f000001", b"0x7f000001 leads to 127.0.0.1, which is this host's own;"),
        ("localhost", b"localhost leads to "),
    ],
)
def test_closed_ranges_are_refused_even_when_all_is_open(host: str, reason: bytes) -> None:
    async def main() -> None:
        async with server(echo) as far, door(Policy("open")) as (_, port), connected(port) as client:
            answer = await client.ask(f"CONNECT {host}:{far} HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403 excise: ")
            assert reason in answer.split(b"\r\n")[0]

    run(main())


def test_an_address_of_an_interface_is_the_hosts_own() -> None:
    """Whatever its range: here it is found by asking where a packet to the outside would come from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but loopback's")
        own = probe.getsockname()[0]

    async def main() -> None:
        async with server(echo, own) as far:
            async with door(Policy("open")) as (_, port), connected(port) as client:
                assert (
                    f"{own} is this host's own" in (await client.ask(f"CONNECT {own}:{far} HTTP/1.1\r\n\r\n".encode())).decode()
                )
            async with door(Policy.allowing((own,), (far,))) as (_, port), connected(port) as client:
                assert await client.tunnel(own, far) == 200

    run(main())


def test_a_name_that_is_not_listed_is_not_even_looked_up() -> None:
    lookup, asked = answers()

    async def main() -> None:
        async with door(to(443), lookup=lookup) as (_, port), connected(port) as client:
            answer = await client.ask(b"CONNECT secret-in-a-name.example:443 HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403 excise: secret-in-a-name.example:443: the host is not listed; add it")

    run(main())
    assert asked == []


def test_answers_that_change_are_checked_each_time_and_asked_for_once() -> None:
    """What was checked is what is connected to: there is no second lookup for an attacker's name server to answer."""
    lookup, asked = answers([HERE], [NEXT], [NEXT, HERE])
    wrong: list[bytes] = []

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wrong.append(await reader.read())

    async def main() -> None:
        async with server(echo) as far, server(never, "127.0.0.2", far):
            policy = to(far, also=("rebinding.example",))
            async with door(policy, lookup=lookup) as (_, port):
                for status, lookups in ((200, 1), (403, 2), (200, 3)):
                    async with connected(port) as client:
                        assert await client.tunnel("rebinding.example", far) == status
                        assert len(asked) == lookups

    run(main())
    assert wrong == []


def test_nobody_there_is_told_apart_from_refused() -> None:
    async def no_name(_: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            gone = closed.getsockname()[1]
        async with door(to(gone, 443, also=("no.example",)), lookup=no_name) as (_, port):
            async with connected(port) as client:
                answer = await client.ask(f"CONNECT 127.0.0.1:{gone} HTTP/1.1\r\n\r\n".encode())
                assert answer.startswith(f"HTTP/1.1 502 excise: 127.0.0.1:{gone} was not reached: Connection refused".encode())
            async with connected(port) as client:
                assert (await client.ask(b"CONNECT no.example:443 HTTP/1.1\r\n\r\n")).startswith(
                    b"HTTP/1.1 502 excise: no.example:443"
                )

    run(main())


def test_a_large_body_behind_a_refused_request_does_not_destroy_the_answer() -> None:
    """Whoever sends it all before reading, as most libraries do."""
    head = b"POST http://other.example/ HTTP/1.1\r\nContent-Length: 900000\r\n\r\n"

    def post(port: int) -> bytes:
        with socket.socket() as client:
            client.settimeout(60)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that it cannot be done before it is heard
            client.connect(("127.0.0.1", port))
            client.sendall(head + bytes(900_000))
            return b"".join(iter(lambda: client.recv(65536), b""))

    async def main() -> None:
        async with door(to(80)) as (_, port):
            assert (await asyncio.to_thread(post, port)).endswith(b"add it to Allow(hosts, ports)\n")

    run(main())


# ---- bounds


def test_a_head_that_drips_is_given_up() -> None:
    async def main() -> None:
        async with door(to(80), head_s=0.3) as (_, port), connected(port) as client:

            async def drip() -> None:
                while True:
                    client.writer.write(b"A")
                    await asyncio.sleep(0.02)

            dripping = asyncio.ensure_future(drip())
            assert (await client.reader.read()).startswith(b"HTTP/1.1 408 ")
            dripping.cancel()
            await asyncio.wait([dripping])

    run(main())


def test_an_endless_head_is_refused() -> None:
    async def main() -> None:
        async with door(to(80)) as (_, port), connected(port) as client:
            assert (await client.ask(b"GET http://a.example/ HTTP/1.1\r\nA: " + b"b" * 60000)).startswith(b"HTTP/1.1 431 ")

    run(main())


def test_a_connection_on_which_nothing_moves_is_closed() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far), idle_s=0.4) as (_, port), connected(port) as client:
            assert await client.tunnel("127.0.0.1", far) == 200
            for _ in range(5):  # what moves keeps it open, beyond the time that closes it
                await asyncio.sleep(0.15)
                client.writer.write(b"x")
                assert await client.reader.readexactly(1) == b"x"
            assert await client.reader.read() == b""

    run(main())


def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
            far = full.getsockname()[1]
            for _ in range(3):  # its queue is full: the kernel answers no more
                sock = waiting.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", far))
            async with door(to(far), connect_s=0.3) as (_, port), connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 504

    run(main())


def test_lookups_that_do_not_end_hold_no_more_than_their_places() -> None:
    asked: list[str] = []
    answer = asyncio.Event()

    async def silent(name: str) -> list[Address]:
        asked.append(name)
        await answer.wait()
        return [HERE]

    async def main() -> None:
        async with door(Policy("open"), lookup=silent, connect_s=0.3) as (_, port), contextlib.AsyncExitStack() as clients:
            for _ in range(3):  # who gave up has not given the thread back that still waits
                many = [await clients.enter_async_context(connected(port)) for _ in range(LOOKUPS)]
                statuses = await asyncio.gather(*(one.tunnel(f"n{n}.example", 80) for n, one in enumerate(many)))
                assert statuses == [504] * LOOKUPS
            assert len(asked) == LOOKUPS
            answer.set()

    run(main())


def test_connections_beyond_the_bound_wait_their_turn() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far)) as (_, port), contextlib.AsyncExitStack() as clients:
            many = [await clients.enter_async_context(connected(port)) for _ in range(CONNECTIONS)]
            assert await asyncio.gather(*(one.tunnel("127.0.0.1", far) for one in many)) == [200] * CONNECTIONS
            late = await clients.enter_async_context(connected(port))
            asking = asyncio.ensure_future(late.tunnel("127.0.0.1", far))
            many[0].writer.write(b"x")
            assert await many[0].reader.readexactly(1) == b"x"
            assert not asking.done()
            many[0].writer.close()
            assert await asking == 200

    run(main())


def test_all_doors_together_have_a_bound() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far), everybody=1) as (_, port), connected(port) as one, connected(port) as two:
            assert await one.tunnel("127.0.0.1", far) == 200
            asking = asyncio.ensure_future(two.tunnel("127.0.0.1", far))
            one.writer.write(b"x")
            assert await one.reader.readexactly(1) == b"x"
            assert not asking.done()
            one.writer.close()
            assert await asking == 200

    run(main())


def test_who_does_not_read_stalls_who_writes() -> None:
    sent = 0
    stalled = asyncio.Event()

    async def floods(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        piece = bytes(65536)
        while True:
            writer.write(piece)
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                stalled.set()
                return
            sent += len(piece)

    async def main() -> None:
        async with server(floods) as far, door(to(far)) as (_, port), server(echo) as other:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode())
                await stalled.wait()
                assert sent < 32 << 20, "more than the kernel's own buffers hold"
            async with door(to(other)) as (_, beside), connected(beside) as client:
                assert await client.tunnel("127.0.0.1", other) == 200

    run(main())


# ---- change and close


def test_a_change_cuts_what_the_old_policy_let_through() -> None:
    async def main() -> None:
        async with server(echo) as far, door(to(far)) as (made, port), connected(port) as tunnel, connected(port) as waiting:
            assert await tunnel.tunnel("127.0.0.1", far) == 200
            waiting.writer.write(b"CONNECT 127")
            await made.change(Policy())
            for cut in (tunnel, waiting):
                with contextlib.suppress(ConnectionResetError):
                    assert await cut.reader.read() == b""
            async with connected(port) as client:
                assert b"403 excise: 127.0.0.1:443: this sandbox has no network now" in await client.ask(
                    b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n"
                )
            await made.change(to(far))
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200

    run(main())


def test_a_close_leaves_no_listener_and_no_descriptor() -> None:
    async def main() -> None:
        async with server(echo) as far:
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is all that is wanted
            async with door(to(far)) as (made, port):
                async with connected(port) as client:
                    assert await client.tunnel("127.0.0.1", far) == 200
                    await made.close()
                    with contextlib.suppress(ConnectionResetError):
                        assert await client.reader.read() == b""
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
            while len(os.listdir("/proc/self/fd")) > before:  # noqa: PTH208 - the echo server's own end closes in its time
                await asyncio.sleep(0)

    run(main())
