"""What we and the launcher say to each other, as bytes; `native/launch/request.h` says the same."""

import struct
from posixpath import dirname
from typing import NamedTuple

import msgspec

from excise.guest import wire

# to the launcher
CREATE, CLOSE = 1, 2
# from it
HELLO, READY, FAILED, GONE = 16, 17, 18, 19

TAG_LOWER, TAG_BIND, TAG_HOSTNAME, TAG_DISK_BYTES, TAG_INODES, TAG_CGROUP, TAG_WRITE = range(64, 71)
TAG_PRIVILEGES, TAG_LISTEN, TAG_SHELL, TAG_MAKE_DIR, TAG_DEVICE, TAG_CGROUP_HOME = range(71, 77)
TAG_USERS, TAG_ROOTLESS = 96, 97
TAG_STEP, TAG_ERRNO, TAG_MESSAGE = 112, 113, 114

MAX_PACKET = 65536
_HEADER = struct.Struct("<II")


class Bind(msgspec.Struct, frozen=True):
    """A path of the host shown inside."""

    source: str
    target: str
    read_only: bool = True


class Cgroup(msgspec.Struct, frozen=True):
    """A control group to make and join, and what is written into its files first."""

    directory: str
    values: tuple[tuple[str, str], ...] = ()
    controllers: tuple[str, ...] | None = None
    """v2: what the directory above gives to those in it; that is the launcher's own, and made by it. None on v1."""


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as the launcher is told of it."""

    lowers: tuple[str, ...]
    """Directories of the image, the topmost first."""
    binds: tuple[Bind, ...] = ()
    hostname: str
    disk_bytes: int | None = None
    inodes: int | None = None
    cgroups: tuple[Cgroup, ...] = ()
    may_gain_privileges: bool = False
    listen_port: int | None = None
    directories: tuple[str, ...] = ()
    """Made in the root if they are not there."""
    devices: tuple[str, ...] = ()


class Answer(NamedTuple):
    """A packet of the launcher's."""

    type: int
    id: int
    fields: dict[int, bytes]

    def number(self, tag: int) -> int:
        return int.from_bytes(self.fields.get(tag, b""), "little")

    def text(self, tag: int) -> str:
        return self.fields.get(tag, b"").decode("utf-8", "replace")


def create(id: int, asked: Create, *, shell: bool) -> bytes:
    """The CREATE packet; `shell`: the opaque shell's descriptor goes beside it."""
    parts = [_HEADER.pack(CREATE, id)]
    parts += (wire.field(TAG_LOWER, wire.text(lower)) for lower in asked.lowers)
    parts += (
        wire.field(TAG_BIND, wire.text(bind.source) + b"\0" + wire.text(bind.target) + b"\0" + bytes([bind.read_only]))
        for bind in asked.binds
    )
    parts.append(wire.field(TAG_HOSTNAME, wire.text(asked.hostname)))
    for cgroup in asked.cgroups:
        if cgroup.controllers is not None:
            given = " ".join(f"+{name}" for name in cgroup.controllers)
            parts.append(wire.field(TAG_CGROUP_HOME, wire.text(dirname(cgroup.directory)) + b"\0" + wire.text(given)))
        parts.append(wire.field(TAG_CGROUP, wire.text(cgroup.directory)))
        parts += (wire.field(TAG_WRITE, wire.text(file) + b"\0" + wire.text(value)) for file, value in cgroup.values)
    parts += (wire.field(TAG_MAKE_DIR, wire.text(directory)) for directory in asked.directories)
    parts += (wire.field(TAG_DEVICE, wire.text(device)) for device in asked.devices)
    numbers = (
        (TAG_DISK_BYTES, asked.disk_bytes),
        (TAG_INODES, asked.inodes),
        (TAG_PRIVILEGES, 1 if asked.may_gain_privileges else None),
        (TAG_LISTEN, asked.listen_port),
        (TAG_SHELL, 1 if shell else None),
    )
    parts += (wire.number(tag, value) for tag, value in numbers if value is not None)
    return b"".join(parts)


def close(id: int) -> bytes:
    return _HEADER.pack(CLOSE, id)


def answer(packet: bytes) -> Answer:
    """What the launcher said. It is our own program: a malformed packet is an error of ours, and raises."""
    kind, sandbox = _HEADER.unpack_from(packet)
    return Answer(kind, sandbox, dict(wire.fields(packet[_HEADER.size :])))
