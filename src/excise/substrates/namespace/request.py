"""What we and the launcher say to each other, as bytes; `native/launch/request.h` says the same."""

import struct
from collections.abc import Iterator
from posixpath import dirname
from typing import NamedTuple

import msgspec

from excise.guest import wire

# to the launcher
CREATE, CLOSE, ROOT, DROP, OPEN, MAKE = 1, 2, 3, 4, 5, 6
# from it
HELLO, READY, FAILED, GONE, ROOTED, OPENED = 16, 17, 18, 19, 20, 21

TAG_LOWER, TAG_BIND, TAG_HOSTNAME, TAG_DISK_BYTES, TAG_INODES, TAG_CGROUP, TAG_WRITE = range(64, 71)
TAG_PRIVILEGES, TAG_LISTEN, TAG_SHELL, TAG_MAKE_DIR, TAG_DEVICE, TAG_CGROUP_HOME, TAG_LAYER, TAG_SEAL = range(71, 79)
TAG_USERS, TAG_ROOTLESS, TAG_LAYERS = 96, 97, 98
TAG_SIZE_BYTES = 104
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

    lowers: tuple[str | int, ...]
    """Directories, and layers by their ids; the topmost first."""
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
    parts = [_HEADER.pack(CREATE, id), *_mounts(asked)]
    parts.append(wire.field(TAG_HOSTNAME, wire.text(asked.hostname)))
    for cgroup in asked.cgroups:
        if cgroup.controllers is not None:
            given = " ".join(f"+{name}" for name in cgroup.controllers)
            parts.append(wire.field(TAG_CGROUP_HOME, wire.text(dirname(cgroup.directory)) + b"\0" + wire.text(given)))
        parts.append(wire.field(TAG_CGROUP, wire.text(cgroup.directory)))
        parts += (wire.field(TAG_WRITE, wire.text(file) + b"\0" + wire.text(value)) for file, value in cgroup.values)
    parts += (wire.field(TAG_MAKE_DIR, wire.text(directory)) for directory in asked.directories)
    parts += _numbers((TAG_LISTEN, asked.listen_port), (TAG_SHELL, 1 if shell else None))
    return b"".join(parts)


def root(id: int, asked: Create, *, seal: int | None) -> bytes:
    """Another root for the sandbox `id`, which was made as `asked` but for its lowers.

    `seal`: its upper becomes the layer of this id, the topmost of them.
    """
    return b"".join((_HEADER.pack(ROOT, id), *_mounts(asked), *_numbers((TAG_SEAL, seal))))


def _mounts(asked: Create) -> Iterator[bytes]:
    """What a root is made of, each time that one is."""
    for lower in asked.lowers:
        yield wire.number(TAG_LAYER, lower) if isinstance(lower, int) else wire.field(TAG_LOWER, wire.text(lower))
    for bind in asked.binds:
        named = wire.text(bind.source) + b"\0" + wire.text(bind.target) + b"\0"
        yield wire.field(TAG_BIND, named + bytes([bind.read_only]))
    for device in asked.devices:
        yield wire.field(TAG_DEVICE, wire.text(device))
    yield from _numbers(
        (TAG_DISK_BYTES, asked.disk_bytes),
        (TAG_INODES, asked.inodes),
        (TAG_PRIVILEGES, 1 if asked.may_gain_privileges else None),
    )


def _numbers(*numbers: tuple[int, int | None]) -> Iterator[bytes]:
    return (wire.number(tag, value) for tag, value in numbers if value is not None)


def drop(layer: int) -> bytes:
    return _HEADER.pack(DROP, layer)


def open_upper(id: int) -> bytes:
    return _HEADER.pack(OPEN, id)


def make(layer: int) -> bytes:
    return _HEADER.pack(MAKE, layer)


def close(id: int) -> bytes:
    return _HEADER.pack(CLOSE, id)


def answer(packet: bytes) -> Answer:
    """What the launcher said. It is our own program: a malformed packet is an error of ours, and raises."""
    kind, sandbox = _HEADER.unpack_from(packet)
    return Answer(kind, sandbox, dict(wire.fields(packet[_HEADER.size :])))
