"""The cross-built guest, run by an emulator: it greets, does file actions, and ends with its link.

QEMU's user mode emulates neither a process that shares memory without being a thread (a runner is one) nor child subreapers. So
programs cannot be started under it: that is refused, with the reason, and costs nothing else. PID 1 needs no subreaper.
"""

import errno
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise.action import FileAction, List, Read, Remove, Write
from excise.errors import SubstrateError
from excise.guest import encode, wire
from excise.guest.programs import program

EPOCH = 1
ENTER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


@pytest.fixture
def guest(must_work: Callable[[str, str], None]) -> Generator[socket.socket]:
    """Our end of the link to a guest for the other architecture, which is PID 1."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        must_work("aarch64", "qemu-aarch64-static is not installed")
        raise AssertionError
    try:
        path = program("excise-guest", "aarch64")
    except SubstrateError as error:
        must_work("aarch64", str(error))
        raise
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with theirs:
        argv = [*ENTER, emulator, str(path)]
        process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), env={"PATH": "/usr/bin:/bin"})
    try:
        ours.sendall(wire.hello(EPOCH, {"PATH": "/usr/bin:/bin"}.items(), "/", None))
        ((_, greeting),) = frames(ours, wire.HELLO)
        wire.greeting(greeting)
        yield ours
        ours.close()
        assert process.wait(30) == 0
    finally:
        ours.close()
        process.kill()
        process.wait()


def frames(link: socket.socket, *last: int) -> list[tuple[wire.Header, bytes]]:
    """What comes, up to the first frame of one of the types `last`."""
    taken: list[tuple[wire.Header, bytes]] = []
    with link.makefile("rb") as stream:
        while not taken or taken[-1][0].type not in last:
            head = wire.header(stream.read(wire.HEADER_BYTES))
            taken.append((head, stream.read(head.length)))
    return taken


def did(link: socket.socket, id: int, action: FileAction) -> tuple[bytes, wire.Ended]:
    """What a file action answered, and how it ended."""
    request, _ = encode.file(action)
    begin = wire.request(request.type, id, EPOCH, request.fields, request.flags)
    stdin = b"" if request.stdin is None else wire.frame(wire.DATA, id, EPOCH, request.stdin) + wire.frame(wire.EOF, id, EPOCH)
    link.sendall(begin + stdin)
    answered = frames(link, wire.ENDED)
    assert {head.id for head, _ in answered} == {id}
    return b"".join(payload for head, payload in answered if head.type == wire.OUTPUT), wire.ended(answered[-1][1])


def test_it_does_file_actions(guest: socket.socket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    _, written = did(guest, 1, Write(str(path), b"bytes", mode=0o640))
    assert (written.error, path.read_bytes(), path.stat().st_mode & 0o777) == (0, b"bytes", 0o640)
    data, read = did(guest, 2, Read(str(path)))
    assert (read.error, data) == (0, b"bytes")
    data, _ = did(guest, 3, List(str(tmp_path)))
    ((entry,), seen) = wire.entries(data), path.stat()
    assert (entry.name, entry.kind, entry.size_bytes, entry.mtime_ns) == ("file", "file", 5, seen.st_mtime_ns)
    _, removed = did(guest, 4, Remove(str(path)))
    assert (removed.error, path.exists()) == (0, False)
    _, missing = did(guest, 5, Read(str(path)))
    assert missing.error == 2


def test_a_program_that_cannot_be_started_here_is_refused_and_the_guest_lives_on(guest: socket.socket, tmp_path: Path) -> None:
    guest.sendall(wire.request(wire.RUN, 1, EPOCH, wire.field(wire.TAG_ARG, b"true")))
    ((head, payload),) = frames(guest, wire.REFUSED, wire.ENDED)
    if head.type == wire.ENDED:
        assert wire.ended(payload).exit_code == 0  # an emulator that can
    else:
        assert wire.refusal(payload) == wire.Refusal("Invalid argument", errno.EINVAL)
    assert did(guest, 2, List(str(tmp_path)))[1].error == 0
