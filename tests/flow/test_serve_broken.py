"""Connections that break, frames that are none, clients that never read: nothing is run twice, nobody else is harmed."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import served
from excise.action import Shell
from excise.api import connect
from excise.channel import frames, records
from excise.channel.packing import packed
from excise.sandbox import Sandbox
from excise.substrates.hosted.hop import Hop

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(runs_here: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Generator[served.Served]:
    runs_here("namespace")
    with served.serving(tmp_path_factory.mktemp("broken"), "--drain", "0s") as found:
        yield found


@contextmanager
def cutter(port: int) -> Generator[Hop]:
    found = Hop(port)
    try:
        yield found
    finally:
        found.close()


def test_what_runs_while_the_connection_breaks_is_run_once_and_answered(
    server: served.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after every so many bytes, in both directions: each action leaves one line, and each is answered."""
    monkeypatch.setenv("EXCISE_KEY", server.key)

    async def main() -> None:
        with cutter(server.port) as hop:
            async with connect(f"http://127.0.0.1:{hop.port}") as substrate, Sandbox(substrate) as box:
                await body(hop, box)

    async def body(hop: Hop, box: Sandbox) -> None:
        for number in range(60):
            hop.cut_after(1 + number * 7)
            seen = await box.run(f"echo {number} >> /ran; echo {number}")
            assert seen.text == f"{number}\n"
        hop.cut_after(None)
        assert (await box.read("/ran")).decode().split() == [str(number) for number in range(60)]
        assert hop.cuts >= 40

    asyncio.run(main())


def test_streams_go_on_where_they_were(server: served.Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_KEY", server.key)
    data = secrets.token_bytes(3 * MIB)

    async def main() -> None:
        with cutter(server.port) as hop:
            async with connect(f"http://127.0.0.1:{hop.port}") as substrate, Sandbox(substrate) as box:
                await body(hop, box)

    async def body(hop: Hop, box: Sandbox) -> None:
        hop.cut_after(MIB)
        await box.write("/data", data)
        hop.cut_after(MIB)
        assert await box.read("/data") == data
        process = await box.start("cat; echo end >&2")
        hop.cut_after(MIB)
        writing = asyncio.ensure_future(_write(process, data))
        seen = await process.wait()
        await writing
        assert (seen.stdout[:1000], seen.stderr) == (data[:1000], b"end\n")
        assert hop.cuts >= 3

    async def _write(process: object, data: bytes) -> None:
        for at in range(0, len(data), 50_000):
            await process.write(data[at : at + 50_000])  # type: ignore[attr-defined]
        await process.close_stdin()  # type: ignore[attr-defined]

    asyncio.run(main())


# ---- abuse


def opened(server: served.Served, *, channel: str | None = None, had: int | None = None) -> socket.socket:
    """A raw channel, after its handshake; `had`: the one there is, again."""
    again = "" if had is None else f"Excise-Had: {had}\r\n"
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    raw.sendall(
        f"GET /v1/channel HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: excise/1\r\n"
        f"Authorization: Bearer {server.key}\r\nExcise-Channel: {channel or secrets.token_hex(16)}\r\n{again}\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += raw.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return raw


def ended(raw: socket.socket) -> bool:
    """Whether the server hangs up."""
    with raw:
        try:
            while raw.recv(65536):
                pass
        except ConnectionError:
            pass
        return True


async def lives(server: served.Served) -> None:
    async with connect(server.url) as substrate, Sandbox(substrate) as box:
        assert (await box.run("echo fine")).text == "fine\n"


@pytest.mark.parametrize(
    "sent",
    [
        os.urandom(64),
        b"\0" * 64,
        frames.pack(frames.ANSWER, 1, 0, b"x"),
        frames.pack(frames.CALL, 1, 5, b"x"),
        frames.pack(frames.DATA, 9, 0, b"x"),
        frames.pack(frames.CALL, 2, 0, packed(records.Probe())) * 2,
        frames.pack(frames.CALL, 1, 0, packed(records.Long(10))) + frames.pack(frames.DATA, 1, 0, b"x" * 11),
        frames.pack(frames.CALL, 1, 0, packed(records.Start("i", __import__("excise").Exec(("true",)))))
        + frames.pack(frames.TELL, 1, 0, b"\xff"),
    ],
    ids=["noise", "zeros", "not-a-clients", "unsent-seen", "no-such-call", "twice", "more-than-announced", "told-noise"],
)
def test_frames_that_no_client_sends_end_the_channel_and_nothing_else(server: served.Served, sent: bytes) -> None:
    raw = opened(server)
    raw.sendall(sent)
    assert ended(raw)
    asyncio.run(lives(server))


def test_a_record_that_is_none_is_refused_and_the_channel_goes_on(server: served.Served) -> None:
    raw = opened(server)
    raw.sendall(frames.pack(frames.CALL, 1, 0, b"\xc1") + frames.pack(frames.CALL, 2, 0, packed(records.Probe())))
    values: list[records.Value | records.Long] = []
    with raw:
        while len(values) < 2:
            head = _exactly(raw, frames.HEADER_BYTES)
            found = frames.header(head, 0, frames.FROM_SERVER)
            values.append(records.answered(_exactly(raw, found.length)).value)
    kinds = {type(value).__name__ for value in values}
    assert kinds == {"Refused", "Able"}


def _exactly(raw: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = raw.recv(count - len(data))
        assert piece
        data += piece
    return data


def test_a_storm_of_connections_of_one_channel_runs_nothing_twice(server: served.Served) -> None:
    """Each takes the channel from the one before; what an old one still says is not heard."""

    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            channel = secrets.token_hex(16)
            raws = [opened(server, channel=channel)]
            act = Shell("echo ran >> /storm; sleep 0.5")
            raws[0].sendall(frames.pack(frames.CALL, 1, 0, packed(records.Run(box.id, act))))
            await asyncio.sleep(0.2)
            for number in range(40):
                raws.append(opened(server, channel=channel, had=0))
                with suppress(OSError):
                    raws[number].sendall(frames.pack(frames.CALL, 2 + number, 0, packed(records.Run(box.id, act))))
            head = frames.header(_exactly(raws[-1], frames.HEADER_BYTES), 0, frames.FROM_SERVER)
            assert (head.type, head.call) == (frames.ANSWER, 1)
            assert isinstance(records.answered(_exactly(raws[-1], head.length)).value, records.Seen)
            for raw in raws:
                raw.close()
            assert (await box.read("/storm")).decode().split() == ["ran"]

    asyncio.run(main())


def test_frames_seen_that_were_never_sent_end_the_channel(server: served.Served) -> None:
    channel = secrets.token_hex(16)
    opened(server, channel=channel).close()
    raw = opened(server, channel=channel, had=7)  # of nothing that was sent
    assert ended(raw)
    asyncio.run(lives(server))


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_never_reads_costs_bounded_memory_and_nobody_else(server: served.Served) -> None:
    """It asks a thousand times for 8 MiB and reads nothing."""

    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            await box.run("head -c 8388608 /dev/zero > /big")
            before = rss_bytes(server.process.pid)
            raw = opened(server)
            raw.setblocking(False)
            read = __import__("excise.action", fromlist=["Read"]).Read("/big")
            asked = b"".join(frames.pack(frames.CALL, n, 0, packed(records.Run(box.id, read))) for n in range(1, 1001))
            await asyncio.get_running_loop().sock_sendall(raw, asked)
            most = 0
            for _ in range(60):
                assert (await box.run("echo fine")).text == "fine\n"
                most = max(most, rss_bytes(server.process.pid) - before)
                await asyncio.sleep(0.05)
            raw.close()
            assert most < 900 * MIB

    asyncio.run(main())


def test_a_thousand_idle_connections_and_slow_heads_leave_room_for_others(server: served.Served) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for number, one in enumerate(idle):
            if number % 2:
                one.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        asyncio.run(lives(server))
        more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        idle += more
        told = [one.recv(64) for one in more[-20:]]
        assert all(one.startswith(b"HTTP/1.1 503") for one in told)
        idle[0].settimeout(20)
        assert idle[0].recv(1) == b""  # who says nothing is sent away
    finally:
        for one in idle:
            one.close()
    asyncio.run(lives(server))


def test_a_head_and_a_body_have_bounds(server: served.Served) -> None:
    for sent, status in (
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000, b"431"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(sent)
            assert raw.recv(64).split(b" ")[1] == status
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.key}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(head.encode() + b"Content-Length: 99999999\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(400):
                raw.sendall(b"x" * 65536)
        assert raw.recv(64).split(b" ")[1] == b"413"
