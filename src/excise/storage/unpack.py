"""Unpack a root file system from a tar that may be hostile: nothing is ever written outside the directory given.

Every name is walked from that directory by descriptors, one component at a time and never through a link, and every
entry is made anew, never opened if it was there: so no member can lead the next one astray.
"""

import errno
import lzma
import os
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from excise.errors import SpecError
from excise.storage.background import Stop

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_MOUNT_POINTS = (("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777))

Parts = tuple[str, ...]


def unpack(tar: Path, root: Path, stop: Stop, *, named: str | None = None, workdir: str = "/") -> int:
    """Unpack `tar` into the empty directory `root` and return the bytes of its files. Errors call the tar `named`.

    As root, members keep their numeric owners; for an ordinary user they are all the user's own. Where every substrate
    mounts something, and at `workdir`, there is a directory afterwards even if the tar had none.
    """
    tree = _Tree(root, keep_owners=os.geteuid() == 0)
    current = ""
    try:
        with tarfile.open(tar, "r:*") as archive:
            for member in archive:
                stop.check()
                current = f" at member {member.name[:200]!r}"
                tree.add(member, archive, stop)
            current = ""
            _check_end(archive)
        tree.finish()
        for name, mode in (*_MOUNT_POINTS, (workdir, 0o755)):
            tree.complete(name.strip("/"), mode)
    except _DAMAGED as error:
        raise SpecError(f"{named or tar} cannot be unpacked{current}: {_reason(error)}") from None
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise
        raise SpecError(f"{named or tar} cannot be unpacked{current}: {error.strerror or error}") from None
    finally:
        tree.close()
    return tree.size_bytes


def _reason(error: BaseException) -> str:
    if isinstance(error, tarfile.ReadError) and "could not be opened" in str(error):
        return "it is no tar, plain or compressed by gzip, bzip2 or xz"
    return " ".join(str(error).split()) or "it is damaged"


def _check_end(archive: tarfile.TarFile) -> None:
    """A damaged header in the middle looks like the end to tarfile; a whole tar ends in zeros."""
    file = archive.fileobj
    assert file is not None
    file.seek(archive.offset)
    if file.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):
        raise tarfile.ReadError("it is damaged or cut short")
    if not archive.getmembers():
        raise tarfile.ReadError("it holds no files")


def _refuse(reason: str) -> NoReturn:
    raise tarfile.ExtractError(reason)


def _parts(name: str, what: str = "its name") -> Parts:
    """The components of a member's name, if it stays below the root by what it says."""
    if name.startswith("/"):
        _refuse(f"{what} is absolute")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        _refuse(f"{what} leads out by '..'")
    return parts


class _Tree:
    """A directory being filled; all its entries are reached from one descriptor."""

    def __init__(self, root: Path, *, keep_owners: bool) -> None:
        self.size_bytes = 0
        self._root = os.open(root, _DIRECTORY)
        os.fchmod(self._root, 0o755)
        self._keep_owners = keep_owners
        self._directories: dict[Parts, tarfile.TarInfo] = {}
        self._open: tuple[Parts, int] | None = None

    def close(self) -> None:
        self._forget_open()
        os.close(self._root)

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile, stop: Stop) -> None:
        parts = _parts(member.name)
        if member.isdir():
            self._add_directory(parts, member)
        elif not parts:
            _refuse("the root is not a directory")
        elif member.ischr() or member.isblk():
            # /dev is made by the substrate; a device anywhere else would be a way to the host's own.
            if parts[0] != "dev":
                _refuse("it is a device node")
        else:
            self._replace(parts, member, archive, stop)

    def _replace(self, parts: Parts, member: tarfile.TarInfo, archive: tarfile.TarFile, stop: Stop) -> None:
        directory, name = self._directory(parts[:-1]), parts[-1]
        target = _parts(member.linkname, "its link's target") if member.islnk() else None
        if target == parts:
            _refuse("it is a hard link to itself")
        # Even a file of the same name is made anew, not opened: it may be a link by now.
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        if member.isreg():
            self._make_file(name, directory, member, archive, stop)
        elif member.issym():
            self._make_link(name, directory, member)
        elif target is not None:
            self._make_hard_link(name, directory, target)
        elif member.isfifo():
            self._make_fifo(name, directory, member)
        else:
            _refuse(f"its type {member.type!r} is unknown")

    def _add_directory(self, parts: Parts, member: tarfile.TarInfo) -> None:
        if parts:
            directory = self._directory(parts[:-1])
            try:
                os.mkdir(parts[-1], 0o700, dir_fd=directory)
            except FileExistsError:
                self._directory(parts)
        # Modes come last: an ordinary user could not fill a directory that is already read-only.
        self._directories[parts] = member

    def _make_file(self, name: str, directory: int, member: tarfile.TarInfo, archive: tarfile.TarFile, stop: Stop) -> None:
        source = archive.extractfile(member)
        assert source is not None
        with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=directory), "wb", buffering=0) as file:
            while chunk := source.read(_CHUNK_BYTES):
                stop.check()
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
                self.size_bytes += len(chunk)
            self._dress(file.fileno(), member)

    def _make_link(self, name: str, directory: int, member: tarfile.TarInfo) -> None:
        os.symlink(member.linkname, name, dir_fd=directory)
        if self._keep_owners:
            os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
        os.utime(name, ns=_times_ns(member), dir_fd=directory, follow_symlinks=False)

    def _make_hard_link(self, name: str, directory: int, target: Parts) -> None:
        if not target:
            _refuse("it is a hard link to the root")
        to = self._walk(target[:-1], make=False)
        try:
            os.link(target[-1], name, src_dir_fd=to, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(to)

    def _make_fifo(self, name: str, directory: int, member: tarfile.TarInfo) -> None:
        os.mkfifo(name, 0o600, dir_fd=directory)
        if self._keep_owners:
            os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
        os.chmod(name, member.mode & 0o7777, dir_fd=directory)

    def finish(self) -> None:
        """Give the directories their owners, modes and times, the deepest first."""
        self._forget_open()
        for parts in sorted(self._directories, key=len, reverse=True):
            directory = self._walk(parts, make=False)
            try:
                self._dress(directory, self._directories[parts])
            finally:
                os.close(directory)

    def complete(self, name: str, mode: int) -> None:
        """Make the directory `name` if nothing is there; whatever else is there, a link say, stays what it is."""
        *above, last = _parts(name) or ("",)
        with suppress(FileExistsError, tarfile.ExtractError):
            directory = self._walk(tuple(above), make=True)
            try:
                os.mkdir(last or ".", dir_fd=directory)
                os.chmod(last, mode, dir_fd=directory)
            finally:
                os.close(directory)

    def _dress(self, descriptor: int, member: tarfile.TarInfo) -> None:
        if self._keep_owners:
            os.fchown(descriptor, member.uid, member.gid)
        os.fchmod(descriptor, member.mode & 0o7777)  # after the owner: a change of owner clears set-user-ID
        os.utime(descriptor, ns=_times_ns(member))

    def _directory(self, parts: Parts) -> int:
        """A descriptor of the directory `parts`, kept until another is asked for: members come directory by directory."""
        if self._open is None or self._open[0] != parts:
            self._forget_open()
            self._open = (parts, self._walk(parts, make=True))
        return self._open[1]

    def _forget_open(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _walk(self, parts: Parts, *, make: bool) -> int:
        at = os.dup(self._root)
        for count, part in enumerate(parts, 1):
            try:
                below = self._step(at, part, make=make)
            except (NotADirectoryError, FileNotFoundError) as error:
                what = "is missing" if isinstance(error, FileNotFoundError) else "is a link or a file, not a directory"
                _refuse(f"it passes through {'/'.join(parts[:count])[:200]!r}, which {what}")
            finally:
                os.close(at)
            at = below
        return at

    def _step(self, at: int, part: str, *, make: bool) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=at)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(part, dir_fd=at)
        os.chmod(part, 0o755, dir_fd=at)  # noqa: S103 - as in any root file system, whatever the umask
        return os.open(part, _DIRECTORY, dir_fd=at)


def _times_ns(member: tarfile.TarInfo) -> tuple[int, int]:
    ns = int(member.mtime) * 1_000_000_000
    return ns, ns
