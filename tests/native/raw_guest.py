"""A guest as a child process, spoken to frame by frame: what the Python link hides is seen here."""

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from excise.guest import wire

DEADLINE_S = 30.0
PATH = ("PATH", "/usr/local/bin:/usr/bin:/bin")


class Frame(NamedTuple):
    """One frame of the guest's."""

    type: int
    id: int
    epoch: int
    flags: int
    payload: bytes


class Seen(NamedTuple):
    """All that came for one action up to its end."""

    stdout: bytes
    stderr: bytes
    ended: wire.Ended
    raw: bytes
    """The record of its end, undecoded."""


class RawGuest:
    """One guest on a socket pair. Everything it says must come within the deadline, or the test fails."""

    def __init__(
        self, *program: Path | str, env: Sequence[tuple[str, str]] = (PATH,), cwd: str = "/", greet: bool = True
    ) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(program, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)
        self.socket.settimeout(DEADLINE_S)
        self.epoch = 1
        self._bytes = bytearray()
        self._next = 0
        if greet:
            self.hello(1, env, cwd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        """A guest that hung up on, or was told a lie, ends by itself; the sanitizers have nothing to say."""
        self.socket.close()
        _, said = self.process.communicate(timeout=DEADLINE_S)
        assert not any(word in said for word in (b"Sanitizer", b"runtime error")), said.decode()

    def hello(self, epoch: int, env: Sequence[tuple[str, str]] = (PATH,), cwd: str = "/", user: str | None = None) -> None:
        self.epoch = epoch
        self.socket.sendall(wire.hello(epoch, env, cwd, user))
        frame = self.frame()
        while frame.epoch != epoch:  # of the life before: dropped, as the host does
            frame = self.frame()
        assert frame.type == wire.HELLO

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def run_frame(self, argv: Sequence[str], *, flags: int = 0, fields: bytes = b"") -> tuple[int, bytes]:
        """A request with the next number; both."""
        self._next += 1
        words = b"".join(wire.field(wire.TAG_ARG, word.encode()) for word in argv)
        return self._next, wire.request(wire.RUN, self._next, self.epoch, words + fields, flags)

    def start(self, *argv: str, flags: int = 0, fields: bytes = b"") -> int:
        number, request = self.run_frame(argv, flags=flags, fields=fields)
        self.send(request)
        return number

    def run(self, *argv: str, flags: int = 0, fields: bytes = b"") -> Seen:
        return self.end_of(self.start(*argv, flags=flags, fields=fields))

    def frame(self) -> Frame:
        self._fill(wire.HEADER_BYTES)
        head = wire.header(self._bytes)
        self._fill(wire.HEADER_BYTES + head.length)
        payload = bytes(self._bytes[wire.HEADER_BYTES : wire.HEADER_BYTES + head.length])
        del self._bytes[: wire.HEADER_BYTES + head.length]
        return Frame(head.type, head.id, head.epoch, head.flags, payload)

    def _fill(self, count: int) -> None:
        while len(self._bytes) < count:
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise EOFError("the guest hung up")
            self._bytes += piece

    def expect(self, kind: int, number: int) -> Frame:
        frame = self.frame()
        assert (frame.type, frame.id) == (kind, number), frame
        return frame

    def end_of(self, number: int) -> Seen:
        streams = {wire.STDOUT: b"", wire.STDERR: b""}
        while (frame := self.frame()).type != wire.ENDED:
            assert frame.id == number, frame
            assert frame.type in (wire.OUTPUT, wire.STARTED, wire.CREDIT), frame
            if frame.type == wire.OUTPUT:
                streams[frame.flags] += frame.payload
        assert frame.id == number, frame
        return Seen(streams[wire.STDOUT], streams[wire.STDERR], wire.ended(frame.payload), frame.payload)

    def output(self, number: int) -> bytes:
        frame = self.expect(wire.OUTPUT, number)
        return frame.payload

    def kill(self, number: int) -> None:
        self.send(wire.frame(wire.KILL, number, self.epoch))

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes for a while; for what must not happen."""
        if self._bytes:
            return False
        self.socket.settimeout(seconds)
        try:
            self._bytes += self.socket.recv(1 << 20)
            return not self._bytes
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(DEADLINE_S)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def alive(pid: int) -> bool:
    """Whether it runs; one that is dead and not yet reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_gone(pid: int) -> None:
    ends = time.monotonic() + DEADLINE_S
    while alive(pid):
        assert time.monotonic() < ends, f"process {pid} lives on"
