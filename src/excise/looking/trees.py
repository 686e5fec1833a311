"""Files on this machine as tar streams and back. What comes from a sandbox is an adversary's: it can name anything.

Unpacking goes through directory descriptors, and follows no link below the target: a name leads to where it says, or nowhere.
"""

import errno
import os
import stat
import tarfile
from collections.abc import Callable
from typing import IO

from excise.errors import SpecError

_MOST_DEPTH = 512
_PIECE_BYTES = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacker:
    """Unpacks one tar stream into the directory `target`, whose entries belong to us."""

    def __init__(self, target: str, *, rename: str | None, skipped: Callable[[str], None]) -> None:
        """`rename`: the name of the stream's one topmost entry here. `skipped` is told what cannot be had, in words."""
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._rename = rename
        self._skipped = skipped
        self._top: str | None = None
        self._modes: dict[tuple[str, ...], tuple[int, float]] = {}
        self._made: set[tuple[str, ...]] = set()

    def __enter__(self) -> "Unpacker":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def unpack(self, stream: IO[bytes]) -> None:
        try:
            with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as tar:
                for member in tar:
                    self._take(tar, member)
        except tarfile.TarError as error:
            raise SpecError(f"what the sandbox sent is no whole tar stream: {error}") from None
        # The deepest first, and after all: a directory that may not be written could not be filled.
        for names in sorted(self._modes, key=len, reverse=True):
            self._finish_directory(names)

    # ---- one entry

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        names = self._names(member.name)
        if not names:
            return  # "." is the target itself, which stays as it is
        try:
            if member.isdir():
                self._directory(names)
                self._modes[names] = (member.mode, member.mtime)
            elif member.isreg():
                self._file(tar, member, names)
            elif member.issym():
                self._fresh(names, lambda name, at: os.symlink(member.linkname, name, dir_fd=at))
            elif member.islnk():
                self._hard_link(member, names)
            else:
                self._skipped(f"{member.name}: a device, pipe or socket is not copied")
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST, errno.EINVAL):
                raise
            self._skipped(f"{member.name}: not copied: {error.strerror}")

    def _names(self, path: str) -> tuple[str, ...]:
        """From the target on. One that leads up or begins at the root is refused: no tar of ours has one."""
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if path.startswith("/") or ".." in names or "\0" in path or len(names) > _MOST_DEPTH:
            raise SpecError(f"the sandbox sent {path!r}, which leads out of the target: nothing more of it is copied")
        if self._rename is None or not names:
            return names
        if self._top is None:
            self._top = names[0]
        if names[0] != self._top:
            raise SpecError(f"the sandbox sent {path!r}, which is not what was asked for: nothing more of it is copied")
        return (self._rename, *names[1:])

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, names: tuple[str, ...]) -> None:
        source = tar.extractfile(member)
        assert source is not None

        def make(name: str, at: int) -> None:
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=at)
            with os.fdopen(descriptor, "wb") as file:
                while piece := source.read(_PIECE_BYTES):
                    file.write(piece)
                file.flush()
                os.fchmod(descriptor, _mode(member.mode))
                os.utime(descriptor, (member.mtime, member.mtime))

        self._fresh(names, make)
        self._made.add(names)

    def _hard_link(self, member: tarfile.TarInfo, names: tuple[str, ...]) -> None:
        """To a file of this very stream: one that was here before is not the sandbox's to name."""
        of = self._names(member.linkname)
        if of not in self._made:
            self._skipped(f"{member.name}: a hard link to what was not copied")
            return
        source = self._parent(of)
        try:
            self._fresh(names, lambda name, at: os.link(of[-1], name, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=False))
        finally:
            os.close(source)
        self._made.add(names)

    def _directory(self, names: tuple[str, ...]) -> None:
        os.close(self._open(names, make=True))

    def _fresh(self, names: tuple[str, ...], make: Callable[[str, int], None]) -> None:
        """Make an entry where none is: a file or link that was there is removed, never written through."""
        at = self._parent(names)
        try:
            try:
                make(names[-1], at)
            except FileExistsError:
                os.unlink(names[-1], dir_fd=at)
                make(names[-1], at)
        finally:
            os.close(at)

    # ---- the way there

    def _parent(self, names: tuple[str, ...]) -> int:
        return self._open(names[:-1], make=True)

    def _open(self, names: tuple[str, ...], *, make: bool) -> int:
        """A descriptor of the directory, made where it is not; no link on the way is followed."""
        here = os.dup(self._root)
        for name in names:
            try:
                below = _step(here, name, make=make)
            finally:
                os.close(here)
            here = below
        return here

    def _finish_directory(self, names: tuple[str, ...]) -> None:
        mode, mtime = self._modes[names]
        try:
            directory = self._open(names, make=False)
        except OSError:
            return  # the stream put something else there later
        try:
            os.fchmod(directory, _mode(mode) | stat.S_IRWXU)  # so that its owner can look at it, and remove it
            os.utime(directory, (mtime, mtime))
        finally:
            os.close(directory)


def _step(here: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(name, 0o700, dir_fd=here)
        return os.open(name, _DIRECTORY, dir_fd=here)


def _mode(mode: int) -> int:
    """Rights, and never those of its owner lent to others: that would be us."""
    return stat.S_IMODE(mode) & 0o777


def pack(source: str, name: str, stream: IO[bytes], *, uid: int, gid: int) -> None:
    """The file or directory `source` as a tar stream whose one topmost entry is called `name`, owned by `uid` and `gid`."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
        return member

    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, name, filter=owned)
