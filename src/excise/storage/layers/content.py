"""What a layer holds, entry by entry: recorded when it is unpacked, and looked at again by `verify`."""

import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


class Entry(NamedTuple):
    """A name and all that it is."""

    path: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    device: int
    xattrs: tuple[tuple[str, bytes], ...]
    content: bytes
    """A file's digest, a link's target."""


def entries(root: int, known: Mapping[int, bytes] | None = None, check: Callable[[], None] = lambda: None) -> Iterator[Entry]:
    """Everything below the directory `root` and itself, in a fixed order; digests that are `known` by inode are not read."""
    yield _entry(b".", os.stat(root), _attributes(root), b"")
    yield from _below(root, b"", known or {}, check)


def _below(directory: int, path: bytes, known: Mapping[int, bytes], check: Callable[[], None]) -> Iterator[Entry]:
    check()
    for name in sorted(os.fsencode(name) for name in os.listdir(directory)):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        below = path + name
        if stat.S_ISDIR(status.st_mode):
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                yield _entry(below, status, _attributes(descriptor), b"")
                yield from _below(descriptor, below + b"/", known, check)
            finally:
                os.close(descriptor)
        elif stat.S_ISREG(status.st_mode):
            yield _file(name, directory, below, status, known)
        elif stat.S_ISLNK(status.st_mode):
            yield _entry(below, status, (), os.fsencode(os.readlink(name, dir_fd=directory)))
        else:
            yield _entry(below, status, (), b"")


def _file(name: bytes, directory: int, path: bytes, status: os.stat_result, known: Mapping[int, bytes]) -> Entry:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        digest = known.get(status.st_ino)
        return _entry(path, status, _attributes(descriptor), _read(descriptor) if digest is None else digest)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    digest = hashlib.sha256()
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def _entry(path: bytes, status: os.stat_result, xattrs: tuple[tuple[str, bytes], ...], content: bytes) -> Entry:
    # A directory's own size is the file system's doing, and its time that of the last to write in it.
    plain = stat.S_ISREG(status.st_mode)
    return Entry(
        path=path,
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size if plain else 0,
        mtime_ns=status.st_mtime_ns if plain else 0,
        device=status.st_rdev,
        xattrs=xattrs,
        content=content,
    )


def _attributes(descriptor: int) -> tuple[tuple[str, bytes], ...]:
    # Labels come and go with the policy of the machine, and are nobody's content.
    names = sorted(
        name for name in os.listxattr(descriptor) if name.startswith(("user.", "security.capability", "system.posix"))
    )
    return tuple((name, os.getxattr(descriptor, name)) for name in names)


def recorded(found: Iterator[Entry]) -> tuple[bytes, str]:
    """The entries as they are kept beside a layer, and the digest of them all."""
    packed = msgspec.msgpack.encode(list(found))
    return zlib.compress(packed, 1), f"sha256:{hashlib.sha256(packed).hexdigest()}"


def difference(kept: bytes, digest: str, found: Iterator[Entry]) -> str | None:
    """What is not as it was recorded, in words; None if all is."""
    try:
        packed = zlib.decompress(kept)
    except zlib.error:
        return "its record is damaged"
    if f"sha256:{hashlib.sha256(packed).hexdigest()}" != digest:
        return "its record is damaged"
    expected = iter(msgspec.msgpack.decode(packed, type=list[Entry]))
    for entry in found:
        wanted = next(expected, None)
        if wanted is None or entry.path.split(b"/") < wanted.path.split(b"/"):
            return f"{_named(entry)} was added"
        if entry.path != wanted.path:
            return f"{_named(wanted)} is missing"
        if entry != wanted:
            changed = next(field for field in Entry._fields if getattr(entry, field) != getattr(wanted, field))
            return f"the {changed} of {_named(entry)} is another"
    missing = next(expected, None)
    return None if missing is None else f"{_named(missing)} is missing"


def _named(entry: Entry) -> str:
    return repr(entry.path.decode("utf-8", "backslashreplace")[:200])
