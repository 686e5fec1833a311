"""excise-launch from Python, one packet at a time: what a client says to it, and what a guest in it is told."""

import os
import select
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from excise.guest import wire

CREATE, CLOSE, ROOT, DROP, OPEN, MAKE = range(1, 7)
HELLO, READY, FAILED, GONE, ROOTED, OPENED = range(16, 22)
LOWER, BIND, HOSTNAME, DISK_BYTES, INODES, CGROUP, WRITE, PRIVILEGES, LISTEN, SHELL, MAKE_DIR, DEVICE, HOME = range(64, 77)
LAYER, SEAL = 77, 78
USERS, ROOTLESS, LAYERS, SIZE_BYTES = 96, 97, 98, 104
STEP, ERRNO, MESSAGE = 112, 113, 114

PATIENCE_S = 30


def number(tag: int, value: int) -> bytes:
    return wire.number(tag, value)


def text(tag: int, value: str | Path) -> bytes:
    return wire.field(tag, os.fsencode(value))


def bind(source: Path, target: str, *, read_only: bool = True) -> bytes:
    return wire.field(BIND, os.fsencode(source) + b"\0" + target.encode() + b"\0" + bytes([read_only]))


def home(directory: Path, controllers: str = "") -> bytes:
    return wire.field(HOME, os.fsencode(directory) + b"\0" + controllers.encode())


class Answer(NamedTuple):
    """A packet of the launcher's."""

    type: int
    id: int
    fields: dict[int, bytes]
    descriptors: list[int]

    def number(self, tag: int) -> int:
        return int.from_bytes(self.fields[tag], "little")

    @property
    def step(self) -> str:
        return self.fields[STEP].decode()


class Box:
    """A sandbox: its link to the guest, and the descriptors that came with READY."""

    def __init__(self, id: int, link: socket.socket) -> None:
        self.id = id
        self.link = link
        self.pidfd = -1
        self.listener: socket.socket | None = None
        self._actions = 0
        self._epoch = 1

    @property
    def pid(self) -> int:
        """PID 1's number on the host; 0 or less when it is reaped."""
        lines = Path(f"/proc/self/fdinfo/{self.pidfd}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))

    def greet(self) -> None:
        self._hello()

    def live_again(self) -> None:
        """Begin another life, in the root that it is given."""
        self._epoch += 1
        self._hello(root=True)

    def _hello(self, *, root: bool = False) -> None:
        self.link.sendall(wire.hello(self._epoch, [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")], "/", None, root=root))
        while (frame := self._frame()[0]).epoch != self._epoch:
            pass  # of the life before
        assert frame.type == wire.HELLO

    def run(self, *argv: str) -> tuple[int | None, str]:
        """The exit code and what was printed, both streams together."""
        self._actions += 1
        fields = b"".join(wire.field(wire.TAG_ARG, word.encode()) for word in argv)
        self.link.sendall(wire.request(wire.RUN, self._actions, self._epoch, fields, wire.FLAG_MERGE))
        printed = b""
        while True:
            header, payload = self._frame()
            if header.type == wire.OUTPUT:
                printed += payload
            elif header.type == wire.ENDED:
                return wire.ended(payload).exit_code, printed.decode()
            else:
                raise AssertionError(f"a frame of type {header.type}: {payload!r}")

    def read(self, path: str) -> str:
        """A file, by a file action."""
        self._actions += 1
        fields = wire.number(wire.TAG_OPERATION, wire.FILE_READ) + wire.field(wire.TAG_PATH, path.encode())
        self.link.sendall(wire.request(wire.FILE, self._actions, self._epoch, fields, 0))
        content = b""
        while (frame := self._frame())[0].type != wire.ENDED:
            content += frame[1]
        return content.decode()

    def sh(self, script: str) -> str:
        """What a script printed; it must have succeeded."""
        code, printed = self.run("/bin/sh", "-c", script)
        assert code == 0, printed
        return printed.strip()

    def fails(self, script: str) -> str:
        code, printed = self.run("/bin/sh", "-c", script)
        assert code != 0, printed
        return printed

    def _frame(self) -> tuple[wire.Header, bytes]:
        header = wire.header(self._exactly(wire.HEADER_BYTES))
        return header, self._exactly(header.length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.link.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the guest has hung up")
            data += piece
        return data

    def forget(self) -> None:
        """Close what we hold of it."""
        self.link.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.listener is not None:
            self.listener.close()


class Launch:
    """A launcher process, for root or for another user."""

    def __init__(self, program: int, *, user: int | None = None, prefix: Sequence[str] = ()) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE_S)
        with theirs:
            self.process = subprocess.Popen(
                [*prefix, f"/proc/self/fd/{program}"],
                stdin=theirs.fileno(),
                pass_fds=(program,),
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                env={},
                cwd="/",
            )
        self.boxes: dict[int, Box] = {}
        self.ids = 0
        self.hello = self.receive()

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.control.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            for box in self.boxes.values():
                box.forget()

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [packet], descriptors)

    def receive(self) -> Answer:
        packet, descriptors, _, _ = socket.recv_fds(self.control, 65536, 8)
        if not packet:
            raise ConnectionResetError("the launcher has hung up")
        kind, box = struct.unpack_from("<II", packet)
        return Answer(kind, box, dict(wire.fields(packet[8:])), descriptors)

    def begin(self, fields: bytes, extra: Sequence[int] = ()) -> Box:
        """Ask for a sandbox and do not wait for it."""
        self.ids += 1
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_S)
        box = self.boxes[self.ids] = Box(self.ids, ours)
        with theirs:
            self.send(struct.pack("<II", CREATE, box.id) + fields, [theirs.fileno(), *extra])
        return box

    def finish(self, box: Box, answer: Answer) -> Box:
        assert (answer.type, answer.id) == (READY, box.id), answer
        box.pidfd = answer.descriptors[0]
        if len(answer.descriptors) > 1:
            box.listener = socket.socket(fileno=answer.descriptors[1])
        box.greet()
        return box

    def create(self, fields: bytes) -> Box:
        return self.finish(self.begin(fields), self.receive())

    def refuse(self, fields: bytes) -> Answer:
        """Ask for a sandbox that cannot be made."""
        box = self.begin(fields)
        answer = self.receive()
        assert (answer.type, answer.id) == (FAILED, box.id), answer
        return answer

    def close(self, box: Box) -> None:
        self.send(struct.pack("<II", CLOSE, box.id))
        answer = self.receive()
        assert (answer.type, answer.id) == (GONE, box.id), answer
        box.forget()


class Who:
    """One who starts launchers: with how many users its sandboxes come, and an image that it owns."""

    def __init__(self, program: int, image: Path, user: int | None, users: int) -> None:
        self._program = program
        self.image = image
        self.user = user
        self.users = users
        self.is_root = user is None

    def launch(self, limits: str = "") -> Launch:
        """With `limits`: shell commands that set those it starts with."""
        return Launch(self._program, user=self.user, prefix=["/bin/sh", "-c", f'{limits}; exec "$0"'] if limits else ())

    @property
    def plain(self) -> bytes:
        """The least a request says: an image whose programs are the host's."""
        return text(LOWER, self.image) + bind(Path("/usr"), "/usr")


def make_image(place: Path, owner: int) -> Path:
    """A root file system that borrows /usr; an ordinary user must be able to get there."""
    for directory in ("etc", "tmp", "usr", "private"):
        (place / directory).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (place / name).symlink_to(f"usr/{name}")
    (place / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nother:x:1000:1000::/:/bin/sh\n")
    (place / "etc/group").write_text("root:x:0:\ntty:x:5:\nother:x:1000:\n")
    (place / "private/key").write_text("its own")
    (place / "private/key").chmod(0o600)
    for path in (place, *place.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    return place


def ends(pidfd: int) -> bool:
    """The process of `pidfd` is over, within the time that is promised for it."""
    return bool(select.select([pidfd], [], [], 1)[0])


def children(launch: Launch) -> list[str]:
    """Processes the launcher has started and not yet reaped."""
    return Path(f"/proc/{launch.process.pid}/task/{launch.process.pid}/children").read_text().split()


def descriptors(launch: Launch) -> int:
    """How many it has open."""
    return len(list(Path(f"/proc/{launch.process.pid}/fd").iterdir()))
