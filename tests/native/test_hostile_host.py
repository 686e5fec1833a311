"""A host that says anything at all, in any order, to the sanitized guest: it goes on or gives up, and nothing is left.

It runs as nobody in a directory of its own, and only the frames' and fields' heads are damaged, never a path: a guest that
misunderstands must not do harm here.
"""

import os
import random
import select
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from file_tool import NOBODY

from excise.guest import wire

LIVES = 40
FRAMES = 100
ENDS_S = 60
COMMANDS: tuple[tuple[bytes, ...], ...] = (
    (b"true",),
    (b"cat",),
    (b"sleep", b"1000"),
    (b"yes",),
    (b"no-such-program",),
    (b"sh", b"-c", b"sleep 1000 & echo left"),
    (b"sh", b"-c", b"setsid sleep 1000 >/dev/null 2>&1 & exit 3"),
    (),
)
SCRIPTS = (b":", b"echo out; false", b"sleep 1000", b"exit 4", b"echo 'unterminated", b"cd sub; sleep 1000 &")
ARCHIVE = bytes(1024)


@pytest.fixture(scope="module")
def program(guest_program: Path) -> Generator[int]:
    """The guest with the sanitizers, by descriptor: another user may run it, too."""
    opened = os.open(guest_program, os.O_PATH)
    yield opened
    os.close(opened)


@pytest.fixture
def place() -> Generator[Path]:
    made = Path(tempfile.mkdtemp(prefix="excise-hostile-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


class Host:
    """Frames by chance, but the same for one seed."""

    def __init__(self, seed: int, place: Path) -> None:
        self._chance = random.Random(seed)  # noqa: S311
        self._place = str(place)
        self._epoch = 1
        self._last = 0

    def hello(self) -> bytes:
        return wire.hello(self._epoch, {"PATH": "/usr/bin:/bin"}.items(), self._place, None)

    def frame(self) -> bytes:
        chance = self._chance
        kind = chance.choice([self._run] * 3 + [self._session] * 2 + [self._file] * 3 + [self._other] * 6 + [self._life])
        made = kind()
        return made if kind == self._life or chance.random() > 0.02 else self._damaged(made)

    def _new(self) -> int:
        """The number of an action that is not there yet, but once in a while one that may be."""
        self._last += self._chance.random() < 0.995
        return self._last

    def _flags(self) -> int:
        return self._chance.choice([0, 0, 1, 2, 4, 4, 8, 16, 16 | 32, 8 | 4, 0x7F])

    def _common(self) -> bytes:
        chance = self._chance
        fields = b""
        if chance.random() < 0.3:
            fields += wire.number(wire.TAG_TIMEOUT_NS, chance.choice([1, 10**6, 10**8]))
        if chance.random() < 0.2:
            fields += wire.number(wire.TAG_WINDOW, chance.choice([0, 1, 100, 1 << 40]))
        if chance.random() < 0.2:
            fields += wire.number(wire.TAG_ROWS, 1 << 20) + wire.number(wire.TAG_COLUMNS, 80)
        if chance.random() < 0.1:
            fields += wire.field(wire.TAG_USER, chance.choice([b"nobody", b"no-such-user", b"65534:65534", b":"]))
        return fields

    def _run(self) -> bytes:
        words = b"".join(wire.field(wire.TAG_ARG, word) for word in self._chance.choice(COMMANDS))
        return wire.request(wire.RUN, self._new(), self._epoch, words + self._common(), self._flags())

    def _session(self) -> bytes:
        fields = wire.field(wire.TAG_SESSION, self._chance.choice([b"one", b"two"]))
        fields += wire.field(wire.TAG_SCRIPT, self._chance.choice(SCRIPTS))
        return wire.request(wire.RUN, self._new(), self._epoch, fields + self._common(), self._flags() & ~2)

    def _file(self) -> bytes:
        fields = wire.number(wire.TAG_OPERATION, self._chance.randrange(0, 12))
        fields += wire.field(wire.TAG_PATH, self._chance.choice([b"sub", b"sub/file", b"file", b""]))
        fields += wire.field(wire.TAG_TARGET, b"target") + wire.number(wire.TAG_PORT, 1)
        fields += wire.number(wire.TAG_FLAG, self._chance.randrange(2)) + wire.number(wire.TAG_LENGTH, 1 << 63)
        return wire.request(wire.FILE, self._new(), self._epoch, fields, self._flags() & ~2)

    def _other(self) -> bytes:
        epoch, chance = self._epoch, self._chance
        action = max(1, self._last - chance.randrange(8))
        return chance.choice(
            [
                wire.frame(wire.KILL, action, epoch),
                wire.frame(wire.EOF, action, epoch),
                wire.frame(wire.DATA, action, epoch, ARCHIVE),
                wire.frame(wire.DATA, action, epoch, b""),
                wire.credit(action, epoch, chance.choice([1, 2]), chance.choice([0, 1, 1 << 31])),
                wire.resize(action, epoch, 0, 1 << 31),
                wire.signal(action, epoch, chance.choice([0, 2, 9, 19, 64])),
                wire.frame(wire.KILL, action, epoch + 1),
            ]
        )

    def _life(self) -> bytes:
        if self._chance.random() < 0.7:
            return b""
        self._epoch += 1
        return self.hello()

    def _damaged(self, made: bytes) -> bytes:
        """A head with one bit changed: of the frame, or of its first field."""
        at = self._chance.randrange(min(len(made), wire.HEADER_BYTES + 8)) if made else 0
        return made[:at] + bytes([made[at] ^ 1 << self._chance.randrange(8)]) + made[at + 1 :] if made else b""


def talk(link: socket.socket, said: bytes) -> None:
    """Say it all, unless the guest goes first; hear what it says meanwhile."""
    link.setblocking(False)
    left = memoryview(said)
    while left:
        readable, writable, _ = select.select([link], [link], [], ENDS_S)
        assert readable or writable, "the guest neither hears nor speaks"
        try:
            if readable and not link.recv(1 << 20):
                return
            if writable:
                left = left[link.send(left[:4096]) :]
        except (BrokenPipeError, ConnectionResetError):
            return


def left_in(place: Path) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(place)):
                found.append((process / "stat").read_text())
        except OSError:
            continue  # it ended while we looked
    return found


def live(program: int, place: Path, said: bytes) -> tuple[int, str]:
    """One guest's life: its exit code, and what it complained of."""
    ours, theirs = socket.socketpair()
    who = NOBODY if os.getuid() == 0 else None
    with theirs:
        guest = subprocess.Popen(
            [f"/proc/self/fd/{program}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            pass_fds=(program,),
            user=who,
            group=who,
            extra_groups=None if who is None else [],
            env={},
        )
    with guest, ours:
        try:
            talk(ours, said)
            ours.close()
            _, complaint = guest.communicate(timeout=ENDS_S)
        finally:
            guest.kill()
    return guest.returncode, complaint.decode(errors="replace")


@pytest.mark.parametrize("seed", range(LIVES))
def test_the_guest_survives_or_gives_up(program: int, place: Path, seed: int) -> None:
    (place / "sub").mkdir(mode=0o777)
    (place / "sub").chmod(0o777)
    host = Host(seed, place)
    said = host.hello() + b"".join(host.frame() for _ in range(FRAMES))
    code, complaint = live(program, place, said)
    assert code in (0, 1), complaint
    assert [line for line in complaint.splitlines() if not line.startswith("excise-guest: ")] == []
    assert (code == 1) == (complaint != "")
    assert left_in(place) == []


def test_noise_is_no_host(program: int, place: Path) -> None:
    chance = random.Random(1)  # noqa: S311
    for length in (1, 15, 16, 100, 300_000):
        code, complaint = live(program, place, b"\xff" + chance.randbytes(length))
        assert code in (0, 1), complaint
        assert "ERROR" not in complaint
    header = struct.pack("<IIIBBH", wire.MAX_PAYLOAD + 1, 1, 1, wire.HELLO, 0, 0)
    assert live(program, place, header + bytes(100))[0] == 1
