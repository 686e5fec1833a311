"""Trees copied whole, and layers squashed into one: all that a digest covers, and times."""

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack

from excise.storage.trees import whole
from excise.storage.trees.merge import Hidden, Leaf, Merged, merged

_FICLONE = 0x40049409
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_SHARED = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.ETXTBSY, errno.EPERM)
_WHITEOUT_MODE = stat.S_IFCHR
_CHUNK_BYTES = 1 << 20


def copy(source: int, target: int, most_bytes: int | None = None, check: whole.Check = whole.nothing) -> int:
    """Fill the empty directory `target` with what `source` holds, itself included; the bytes that were written."""
    return squash([source], target, most_bytes, check)


def squash(layers: Sequence[int], target: int, most_bytes: int | None = None, check: whole.Check = whole.nothing) -> int:
    """Fill the empty directory `target` with what the layers, topmost first, are together: a layer that can take their place.

    What they hide of layers below them it hides too. Returns the bytes written; more than `most_bytes` of them is a TreeError.
    """
    with ExitStack() as stack:
        top = stack.enter_context(merged(layers))
        made = _Copy(stack.enter_context(whole.opened(target)), most_bytes, check)
        made.fill(top, made.root, (), 0)
        # As overlayfs has it, the roots are one directory: a mark on one of them means nothing.
        made.dress_directory(made.root, top, opaque=False)
    return made.size_bytes


def copy_entry(name: bytes, source: int, target: int) -> None:
    """Copy what is called `name`, and is no directory, from one directory into another."""
    _Copy(target, None, whole.nothing).leaf(Leaf(source, name, whole.look(source, name)), target, (name,))


class _Copy:
    """One tree in the making. What is in it is ours, so that it may be walked by name."""

    def __init__(self, root: int, most_bytes: int | None, check: whole.Check) -> None:
        self.root = root
        self.size_bytes = 0
        self._most_bytes = most_bytes
        self._check = check
        self._linked: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._clones = True

    def fill(self, source: Merged, target: int, path: tuple[bytes, ...], level: int) -> None:
        for name in source.names():
            self._check()
            with source.look(name) as found:
                match found:
                    case Leaf():
                        self.leaf(found, target, (*path, name))
                    case Merged():
                        self._directory(name, found, target, (*path, name), level)
                    case Hidden():
                        os.mknod(name, _WHITEOUT_MODE, 0, dir_fd=target)
                    case None:  # it went while it was looked at
                        continue

    def _directory(self, name: bytes, found: Merged, target: int, path: tuple[bytes, ...], level: int) -> None:
        os.mkdir(name, 0o700, dir_fd=target)
        with whole.opened(target, name) as below:
            self.fill(found, below, path, whole.level_below(level))
            self.dress_directory(below, found, opaque=found.opaque)

    # ---- what is no directory

    def leaf(self, found: Leaf, target: int, path: tuple[bytes, ...]) -> None:
        status = found.status
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and (first := self._linked.get(key)) is not None:
            self._link(first, target, path[-1])
            return
        if stat.S_ISREG(status.st_mode):
            self._file(found, target)
        else:
            self._special(found, target)
        if status.st_nlink > 1:
            self._linked[key] = path

    def _link(self, first: tuple[bytes, ...], target: int, name: bytes) -> None:
        with ExitStack() as stack:
            at = self.root
            for part in first[:-1]:
                at = stack.enter_context(whole.opened(at, part))
            os.link(first[-1], name, src_dir_fd=at, dst_dir_fd=target, follow_symlinks=False)

    def _special(self, found: Leaf, target: int) -> None:
        status, name = found.status, found.name
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=found.directory), name, dir_fd=target)
        else:
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _file(self, found: Leaf, target: int) -> None:
        source = whole.open_file(found.directory, found.name)
        try:
            file = os.open(found.name, _NEW_FILE, 0o600, dir_fd=target)
            try:
                self._content(source, file, found.status)
                _dress(file, source, found.status)
            finally:
                os.close(file)
        finally:
            os.close(source)

    def _content(self, source: int, file: int, status: os.stat_result) -> None:
        size = status.st_size
        if not size:
            return
        if self._clones and self._shared(source, file):
            return
        at = 0
        while at < size:  # what is a hole stays one: a few pages may be spread over a terabyte
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = self._extent(source, file, at, os.lseek(source, at, os.SEEK_HOLE))
        os.ftruncate(file, size)

    def _extent(self, source: int, file: int, at: int, end: int) -> int:
        while at < end:
            self._check()
            block = os.pread(source, min(_CHUNK_BYTES, end - at), at)
            if not block:
                raise whole.TreeError("a file became shorter while it was read: stop what writes there and try again")
            self._count(len(block))
            at += os.pwrite(file, block, at)
        return at

    def _shared(self, source: int, file: int) -> bool:
        """Whether the file system shares the blocks between the two: then nothing is copied."""
        try:
            fcntl.ioctl(file, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NOT_SHARED:
                raise
            self._clones = False
            return False
        return True

    def _count(self, size: int) -> None:
        self.size_bytes += size
        if self._most_bytes is not None and self.size_bytes > self._most_bytes:
            raise whole.TreeError(f"it holds more than {self._most_bytes:,} bytes, which is all that may be kept: remove some")

    def dress_directory(self, target: int, found: Merged, *, opaque: bool) -> None:
        _dress(target, found.top, found.status)
        if opaque:
            os.setxattr(target, whole.OPAQUE, b"y")
            os.utime(target, ns=(found.status.st_atime_ns, found.status.st_mtime_ns))


def _dress(target: int, source: int, status: os.stat_result) -> None:
    """Owner, rights, attributes, times. In this order: a change of owner clears set-user-ID and capabilities."""
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    for name, value in whole.attributes(source).items():
        os.setxattr(target, name, value)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
