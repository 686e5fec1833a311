"""How the guest comes into a pod and finds its link: the program copied, descriptors handed over, a secret over TCP."""

import os
import socket
import stat
import struct
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from raw_guest import DEADLINE_S

from excise.guest import wire

SECRET = "5" * 64
ENV = {"PATH": "/usr/bin:/bin", "ODD": "a=b\nc", "EMPTY": "", "EXCISE_LINK_SECRET": SECRET}


@contextmanager
def serving(program: Path, path: str, link: socket.socket) -> Generator[None]:
    """A guest that waits for its link at `path`; it ends, and all it started, with our end of the link."""
    process = subprocess.Popen([program, "-w", path], stderr=subprocess.PIPE, env=ENV, cwd="/usr")
    try:
        yield
        link.close()
        _, said = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, b"")
    finally:
        process.kill()


@contextmanager
def started(*words: Path | str, **more: object) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=ENV, cwd="/usr", **more)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        _, said = process.communicate(timeout=DEADLINE_S)
        assert b"Sanitizer" not in said, said.decode()


def exactly(sock: socket.socket, count: int) -> bytes:
    held = b""
    while len(held) < count:
        more = sock.recv(count - len(held))
        assert more, f"it ended after {held!r}"
        held += more
    return held


def told(sock: socket.socket) -> list[bytes]:
    magic, length = struct.unpack("<8sI", exactly(sock, 12))
    assert magic == b"EXCISE1\n"
    return exactly(sock, length).split(b"\0")


def greeted(sock: socket.socket, life: int = 1) -> None:
    """It serves: it answers a greeting."""
    sock.sendall(wire.hello(life, (), "/", None))
    head = wire.header(exactly(sock, wire.HEADER_BYTES))
    assert (head.type, head.epoch) == (wire.HELLO, life)
    exactly(sock, head.length)


def test_it_copies_itself_for_anyone_to_execute(guest_program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "guest"
    copied = subprocess.run([guest_program, "-c", copy], check=False, timeout=DEADLINE_S, umask=0o077)
    assert copied.returncode == 0
    assert copy.read_bytes() == guest_program.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755


def test_a_copy_that_has_no_place_says_so(guest_program: Path, tmp_path: Path) -> None:
    copied = subprocess.run(
        [guest_program, "-c", tmp_path / "no" / "guest"], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert copied.returncode == 1
    assert copied.stderr == b"excise-guest: copy: No such file or directory\n"


def ends() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE_S)
    return ours, theirs


@pytest.mark.parametrize("giver_first", [False, True])
def test_a_link_is_handed_over_whoever_comes_first(guest_program: Path, tmp_path: Path, giver_first: bool) -> None:
    path = str(tmp_path / "link")
    ours, theirs = ends()
    guest = serving(guest_program, path, ours)
    giver = started(guest_program, "-g", path, stdin=theirs, stdout=theirs)
    with theirs, ours, ExitStack() as entered:
        entered.enter_context(giver if giver_first else guest)
        words = told(ours) if giver_first else []
        entered.enter_context(guest if giver_first else giver)
        words = words or told(ours)
        theirs.close()
        greeted(ours)
        ours.close()
    assert words[:2] == [b"/usr", str(os.geteuid()).encode()]
    assert {b"ODD=a=b\nc", b"EMPTY="} <= set(words[1:])
    assert not any(word.startswith(b"EXCISE_LINK_SECRET") for word in words)
    assert list(tmp_path.iterdir()) == []


def test_the_giver_may_die_and_the_guest_serves_on(guest_program: Path, tmp_path: Path) -> None:
    """Sandboxed code can kill every process of its container but the first."""
    path = str(tmp_path / "link")
    ours, theirs = ends()
    with ours, serving(guest_program, path, ours):
        with theirs, started(guest_program, "-g", path, stdin=theirs, stdout=theirs):
            told(ours)
            greeted(ours)
        greeted(ours, 2)


def test_the_giver_ends_with_the_guest(guest_program: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "link")
    ours, theirs = ends()
    with ours, theirs, started(guest_program, "-g", path, stdin=theirs, stdout=theirs) as giver:
        theirs.close()
        with serving(guest_program, path, ours):
            told(ours)
            greeted(ours)
        assert giver.wait(timeout=DEADLINE_S) == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def reached(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    """A connection to it, as soon as it listens."""
    while process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        except ConnectionRefusedError:
            os.sched_yield()
    raise AssertionError("it ended")


@pytest.mark.parametrize("option", ["-f", "-l"])
def test_only_who_knows_the_secret_is_served_over_tcp(guest_program: Path, option: str) -> None:
    port = free_port()
    with started(guest_program, option, str(port)) as guest:
        if option == "-f":  # only the loopback leads to it; whoever forwards a port is there
            listening = Path(f"/proc/{guest.pid}/net/tcp").read_text
            while f"0100007F:{port:04X} 00000000:0000 0A" not in listening():
                assert guest.poll() is None
        silent = [reached(port, guest) for _ in range(40)]  # more than it has places for
        with reached(port, guest) as stranger:
            stranger.sendall(b"6" * 64)
            assert stranger.recv(1) == b""
        with reached(port, guest) as host:
            host.sendall(SECRET[:10].encode())
            host.sendall(SECRET[10:].encode())
            assert told(host)[0] == b"/usr"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
            greeted(host)
        assert guest.wait(timeout=DEADLINE_S) == 0
        for one in silent:
            one.close()


def test_without_a_secret_it_does_not_listen(guest_program: Path) -> None:
    ended = subprocess.run(
        [guest_program, "-l", str(free_port())], capture_output=True, check=False, timeout=DEADLINE_S, env={}
    )
    assert (ended.returncode, ended.stderr) == (1, b"excise-guest: listen: Invalid argument\n")
