"""The cross-built guest, run by an emulator as a plain process: it greets, runs a program, and says how it ended."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Generator

import pytest

from excise.errors import SubstrateError
from excise.guest import wire
from excise.guest.programs import program

EPOCH = 1


@pytest.fixture
def guest(must_work: Callable[[str, str], None]) -> Generator[socket.socket]:
    """Our end of the link to a guest for the other architecture."""
    emulator = shutil.which("qemu-aarch64-static")
    try:
        path = program("excise-guest", "aarch64")
    except SubstrateError as error:
        must_work("aarch64", str(error))
        raise
    if emulator is None:
        must_work("aarch64", "qemu-aarch64-static is not installed")
        raise AssertionError
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with theirs:
        process = subprocess.Popen(
            [emulator, path], stdin=theirs.fileno(), stdout=theirs.fileno(), env={"PATH": "/usr/bin:/bin"}
        )
    try:
        yield ours
        ours.close()
        assert process.wait(30) == 0
    finally:
        ours.close()
        process.kill()
        process.wait()


def frames(link: socket.socket, last: int) -> list[tuple[wire.Header, bytes]]:
    """What comes, up to the first frame of type `last`."""
    taken: list[tuple[wire.Header, bytes]] = []
    with link.makefile("rb") as stream:
        while not taken or taken[-1][0].type != last:
            head = wire.header(stream.read(wire.HEADER_BYTES))
            taken.append((head, stream.read(head.length)))
    return taken


def run(link: socket.socket, id: int, *argv: str) -> tuple[bytes, wire.Ended]:
    fields = b"".join(wire.field(wire.TAG_ARG, wire.text(word)) for word in argv)
    link.sendall(wire.request(wire.RUN, id, EPOCH, fields))
    answered = frames(link, wire.ENDED)
    assert {head.id for head, _ in answered} == {id}
    printed = b"".join(payload for head, payload in answered if head.type == wire.OUTPUT)
    return printed, wire.ended(answered[-1][1])


def test_it_greets_and_runs_programs(guest: socket.socket) -> None:
    guest.sendall(wire.hello(EPOCH, {"PATH": "/usr/bin:/bin", "WORD": "spoken"}.items(), "/", None))
    ((_, greeting),) = frames(guest, wire.HELLO)
    wire.greeting(greeting)
    _, ended = run(guest, 1, "true")
    assert (ended.exit_code, ended.signal) == (0, 0)
    printed, ended = run(guest, 2, "sh", "-c", 'echo "$WORD from $PWD"; exit 7')
    assert (printed, ended.exit_code) == (b"spoken from /\n", 7)
