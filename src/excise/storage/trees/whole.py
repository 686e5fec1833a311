"""Trees of files, as an overlay's layers: their digest, what they take, and their removal.

A tree is what a sandbox left behind, and may hold anything. It is given by a descriptor of its directory, every name is looked
up in the descriptor of the one above it and never through a link, and nothing that is not a file is opened. This and what else
is done to trees imports nothing but the standard library: the storekeeper, who does it, has nothing else.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
OPAQUE = "user.overlay.opaque"
"""On a directory: "y", nothing of the layers below shows through; "x", files in it that carry WHITEOUT are whiteouts."""
WHITEOUT = "user.overlay.whiteout"
BLOCK_BYTES = 1 << 16
MOST_LEVELS = 256
_ZEROS = bytes(BLOCK_BYTES)
_KEPT = ("user.", "system.posix_acl_", "security.capability")
_OVERLAYS_OWN = "user.overlay."
_ESCAPED = "user.overlay.overlay."

Check = Callable[[], None]


def nothing() -> None:
    """The `check` of who never gives up."""


class TreeError(Exception):
    """A tree that will not be taken: what a sandbox made is out of bounds."""


class Usage(NamedTuple):
    """What a tree takes."""

    size_bytes: int
    """On its disk: a hard link counts once, a hole not at all."""
    entries: int


@contextlib.contextmanager
def opened(directory: int, name: bytes = b".") -> Generator[int]:
    """A descriptor of our own, with a position of its own: those we are given may be shared."""
    descriptor = os.open(name, DIRECTORY, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names(directory: int) -> list[bytes]:
    return sorted(map(os.fsencode, os.listdir(directory)))


def look(directory: int, name: bytes) -> os.stat_result:
    return os.stat(name, dir_fd=directory, follow_symlinks=False)


def level_below(level: int) -> int:
    if level >= MOST_LEVELS:
        raise TreeError(f"directories are nested more than {MOST_LEVELS} deep: remove them and try again")
    return level + 1


def attributes(descriptor: int) -> dict[str, bytes]:
    """Extended attributes that are somebody's: neither labels of the machine's policy nor overlayfs's notes to itself."""
    return {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor) if _is_kept(name)}


def _is_kept(name: str) -> bool:
    if not name.startswith(_KEPT):
        return False
    # What a program inside calls user.overlay.x is kept by overlayfs as user.overlay.overlay.x: its own, not overlayfs's.
    return not name.startswith(_OVERLAYS_OWN) or name.startswith(_ESCAPED)


def mark(directory: int) -> bytes:
    """The directory's OPAQUE attribute, empty if it has none."""
    return os.getxattr(directory, OPAQUE) if OPAQUE in os.listxattr(directory) else b""


def is_whiteout(directory: int, name: bytes, status: os.stat_result, marked: bytes) -> bool:
    """Whether this entry of a directory with this `mark` hides the name in the layers below."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if marked != b"x" or not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    file = os.open(name, FILE, dir_fd=directory)
    try:
        return WHITEOUT in os.listxattr(file)
    finally:
        os.close(file)


# ---- content


def open_file(directory: int, name: bytes) -> int:
    """A file's descriptor. What is another thing by now than it was when it was looked at is no file."""
    file = os.open(name, FILE, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise TreeError(f"{os.fsdecode(name)!r} changed while it was read: stop what writes there and try again")
    return file


def blocks(file: int, size: int, check: Check = nothing) -> Iterator[tuple[int, bytes]]:
    """What a file holds, as (offset, bytes), without blocks of zeros: whether these are holes is its file system's choice."""
    at = 0
    while at < size:
        check()
        if size > BLOCK_BYTES:
            try:
                at = os.lseek(file, at, os.SEEK_DATA)
            except OSError:  # ENXIO: a hole to the end
                return
            at -= at % BLOCK_BYTES
        block = os.pread(file, min(BLOCK_BYTES, size - at), at)
        if not block:
            return
        if block != _ZEROS[: len(block)]:
            yield at, block
        at += len(block)


# ---- digest


def digest(root: int, check: Check = nothing) -> str:
    """The tree's digest: names, types, modes, owners, contents, links hard and soft, attributes, devices, whiteouts, opacity.

    Times are not in it. A directory's is that of whoever last made an entry in it, and copying a tree is making entries; and
    file systems round them differently. The same tree has the same digest on any file system, copied or not.
    """
    found = hashlib.sha256()
    with opened(root) as directory:
        _Digest(found.update, check).directory(b"", os.fstat(directory), directory, 0)
    return f"sha256:{found.hexdigest()}"


class _Digest:
    def __init__(self, update: Callable[[bytes], None], check: Check) -> None:
        self._update = update
        self._check = check
        self._linked: dict[tuple[int, int], int] = {}

    def directory(self, name: bytes, status: os.stat_result, directory: int, level: int) -> None:
        marked = mark(directory)
        opaque = b"opaque" if marked == b"y" else b""
        self._entry(name, status, opaque, attributes(directory))
        below = names(directory)
        for each in below:
            self._below(each, directory, marked, level)
        self._update(b"end %d\0" % len(below))

    def _below(self, name: bytes, directory: int, marked: bytes, level: int) -> None:
        self._check()
        status = look(directory, name)
        mode = status.st_mode
        if is_whiteout(directory, name, status, marked):
            self._update(b"%b\0whiteout\0" % name)
        elif stat.S_ISDIR(mode):
            with opened(directory, name) as descriptor:
                self.directory(name, status, descriptor, level_below(level))
        elif status.st_nlink > 1 and (first := self._first(status)) is not None:
            self._update(b"%b\0link to %d\0" % (name, first))
        elif stat.S_ISREG(mode):
            self._file(name, directory, status)
        elif stat.S_ISLNK(mode):
            self._entry(name, status, os.fsencode(os.readlink(name, dir_fd=directory)), {})
        else:
            self._entry(name, status, b"%d" % status.st_rdev, {})

    def _first(self, status: os.stat_result) -> int | None:
        """The number of the group of hard links, if one of it was seen before."""
        key = (status.st_dev, status.st_ino)
        if (known := self._linked.get(key)) is not None:
            return known
        self._linked[key] = len(self._linked)
        self._update(b"linked\0")
        return None

    def _file(self, name: bytes, directory: int, status: os.stat_result) -> None:
        file = open_file(directory, name)
        try:
            self._entry(name, status, b"%d" % status.st_size, attributes(file))
            for at, block in blocks(file, status.st_size, self._check):
                self._update(b"%d %d\0" % (at, len(block)))
                self._update(block)
            self._update(b"end\0")
        finally:
            os.close(file)

    def _entry(self, name: bytes, status: os.stat_result, more: bytes, attributes: dict[str, bytes]) -> None:
        # Every field ends in a byte it cannot hold, or says its length: no two trees have one text.
        self._update(b"%b\0%o %d %d\0%b\0" % (name, status.st_mode, status.st_uid, status.st_gid, more))
        for key in sorted(attributes):
            value = attributes[key]
            self._update(b"%b\0%d\0%b" % (os.fsencode(key), len(value), value))
        self._update(b"\0")


# ---- size and removal


def usage(root: int, check: Check = nothing) -> Usage:
    """What the tree below `root` takes."""
    seen: set[tuple[int, int]] = set()
    with opened(root) as directory:
        return Usage(*map(sum, zip((0, 0), *_sizes(directory, seen, check, 0), strict=True)))


def _sizes(directory: int, seen: set[tuple[int, int]], check: Check, level: int) -> Iterator[tuple[int, int]]:
    check()
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            known = (status.st_dev, status.st_ino)
            if status.st_nlink == 1 or known not in seen:
                seen.add(known)
                yield status.st_blocks * 512, 1
            if stat.S_ISDIR(status.st_mode):
                with opened(directory, os.fsencode(entry.name)) as below:
                    yield from _sizes(below, seen, check, level_below(level))


def remove(root: int, check: Check = nothing) -> None:
    """Remove all that is below `root`, however deep, whatever modes its directories have."""
    numbers = itertools.count()
    with opened(root) as directory:
        while names(directory):
            _empty(directory, directory, numbers, check, 0)


def _remove_directory(directory: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        # Who was killed while it wrote here writes a little longer: it is looked through again.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _empty(directory: int, root: int, numbers: Iterator[int], check: Check, level: int) -> None:
    check()
    os.fchmod(directory, 0o700)  # an ordinary user's own may be closed to himself
    for name in names(directory):
        with contextlib.suppress(FileNotFoundError):  # another removes it, too
            if not stat.S_ISDIR(look(directory, name).st_mode):
                os.unlink(name, dir_fd=directory)
            elif level >= MOST_LEVELS:
                # Deeper than there may be descriptors: it goes on from the top, in another round.
                os.rename(name, b".excise-deep-%d" % next(numbers), src_dir_fd=directory, dst_dir_fd=root)
            else:
                with opened(directory, name) as below:
                    _empty(below, root, numbers, check, level + 1)
                _remove_directory(directory, name)
