"""What a client with a key can make a server hold: nothing of it grows without end, and an honest crowd loses nothing."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import served
from excise.action import KEEP_ALL, Exec
from excise.api import connect
from excise.channel import frames, records
from excise.channel.packing import packed
from excise.sandbox import Sandbox

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[served.Served]:
    with served.serving(tmp_path_factory.mktemp("bounds"), "--drain", "0s", address="local") as found:
        yield found


def rss_bytes(server: served.Served) -> int:
    fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class Raw:
    """A channel by hand. It keeps to the windows, and to nothing else."""

    def __init__(self, server: served.Served) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self.socket.sendall(
            f"GET /v1/channel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: excise/1\r\n"
            f"Authorization: Bearer {server.key}\r\nExcise-Channel: {secrets.token_hex(16)}\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert head.startswith(b"HTTP/1.1 101"), head
        self.had = 0
        self.room: dict[int, int] = {}
        self._part = b""

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        """With a word, so that nothing is kept for its coming back."""
        with self.socket, contextlib.suppress(OSError):
            self.socket.sendall(frames.pack(frames.BYE, 0, self.had))

    def call(self, number: int, asked: records.Asked | records.Long) -> None:
        self.room[number] = frames.WINDOW
        self.socket.sendall(frames.pack(frames.CALL, number, self.had, packed(asked)))

    def fill(self, number: int) -> int:
        """As much of a call's bytes as there is credit for now."""
        count = min(self.room[number], frames.MAX_PAYLOAD)
        if count:
            self.room[number] -= count
            self.socket.sendall(frames.pack(frames.DATA, number, self.had, bytes(count)))
        return count

    def hear(self) -> None:
        """What has come, without waiting for more."""
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(1 << 20):
                self._part += data
        except BlockingIOError:
            pass
        finally:
            self.socket.setblocking(True)
        while len(self._part) >= frames.HEADER_BYTES:
            head = frames.header(self._part, 0, frames.FROM_SERVER)
            end = frames.HEADER_BYTES + head.length
            if len(self._part) < end:
                return
            payload, self._part = self._part[frames.HEADER_BYTES : end], self._part[end:]
            self.had += head.type != frames.SEEN
            if head.type == frames.CREDIT:
                self.room[head.call] += frames.granted(payload)


def test_long_calls_are_let_in_as_there_is_room_for_them(server: served.Served) -> None:
    """Twelve calls of 100 MiB, none of them ever whole."""
    before, raw = rss_bytes(server), Raw(server)
    with raw:
        sent = dict.fromkeys(range(1, 13), 0)
        for number in sent:
            raw.call(number, records.Long(100 * MIB))
        quiet_s = time.monotonic() + 2
        while time.monotonic() < quiet_s:
            raw.hear()
            for number in sent:
                if sent[number] < 90 * MIB and (count := raw.fill(number)):
                    sent[number] += count
                    quiet_s = time.monotonic() + 2
        assert sum(sent.values()) < 700 * MIB
        assert rss_bytes(server) - before < 900 * MIB
    asyncio.run(_lives(server))


def test_what_a_command_prints_is_bounded_however_much_it_keeps(server: served.Served) -> None:
    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            before = rss_bytes(server)
            seen = await box.run("head -c 400000000 /dev/zero", keep=KEEP_ALL)
            assert (len(seen.stdout), seen.dropped_bytes) == (128 * MIB, 400_000_000 - 128 * MIB)
            assert rss_bytes(server) - before < 800 * MIB

    asyncio.run(main())


def test_answers_that_nobody_takes_over_http_are_counted(server: served.Served) -> None:
    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            await box.run("head -c 157286400 /dev/zero > big")
            path = (await box.run("pwd")).text.strip()
            before, most = rss_bytes(server), 0
            raws = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(10)]
            for raw in raws:
                raw.sendall(
                    f"GET /v1/sandboxes/{box.id}/file?path={path}/big HTTP/1.1\r\nHost: localhost\r\n"
                    f"Authorization: Bearer {server.key}\r\n\r\n".encode()
                )
            for _ in range(60):
                await asyncio.sleep(0.1)
                most = max(most, rss_bytes(server) - before)
            assert (await box.run("echo fine")).text == "fine\n"
            for raw in raws:
                raw.close()
            assert most < 900 * MIB

    asyncio.run(main())


def test_what_comes_within_a_call_that_takes_nothing_is_not_kept(server: served.Served) -> None:
    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            before, raw = rss_bytes(server), Raw(server)
            with raw:
                for number in range(1, 201):
                    raw.call(number, records.Run(box.id, Exec(("sleep", "5"))))
                    raw.hear()
                    while raw.fill(number):
                        pass
                    assert raw.room[number] == 0
                await asyncio.sleep(0.5)
                assert rss_bytes(server) - before < 20 * MIB

    asyncio.run(main())


def test_bytes_one_by_one_cost_what_they_are(server: served.Served) -> None:
    """A command that reads nothing, and its stdin in frames of one byte."""

    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            before, raw = rss_bytes(server), Raw(server)
            with raw:
                for number in range(1, 9):
                    raw.call(number, records.Start(box.id, Exec(("sleep", "30"))))
                    one = frames.pack(frames.DATA, number, 0, b"x")
                    raw.socket.sendall(one * frames.WINDOW)
                await asyncio.sleep(1)
                assert rss_bytes(server) - before < 40 * MIB

    asyncio.run(main())


@pytest.mark.parametrize("way", ["there", "back"])
def test_an_honest_crowd_loses_nothing(server: served.Served, way: str) -> None:
    """Seven hundred at once, each with as much as goes in one frame: more than may be on its way unseen."""

    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            if way == "there":
                writes = (box.write(f"f{number % 8}", bytes(60_000)) for number in range(700))
                await asyncio.gather(*writes)
            else:
                await box.write("f", bytes(60_000))
                reads = (box.read("f") for _ in range(1200))
                assert {len(data) for data in await asyncio.gather(*reads)} == {60_000}
            assert (await box.run("echo fine")).text == "fine\n"

    asyncio.run(main())


async def _lives(server: served.Served) -> None:
    async with connect(server.url) as substrate, Sandbox(substrate) as box:
        assert (await box.run("echo fine")).text == "fine\n"
