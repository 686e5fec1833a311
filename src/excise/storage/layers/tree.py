"""A directory filled from a tar that may be hostile, in the form overlayfs stacks: nothing is ever written outside of it.

Every name is walked from that directory by descriptors, one component at a time and never through a link, and every entry is
made anew, never opened if it was there: so no member can lead the next one astray.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

from excise.storage.layers.tarfields import TarError
from excise.storage.layers.tarstream import Member
from excise.storage.trees.whole import MOST_LEVELS

OPAQUE = "user.overlay.opaque"
"""overlayfs mounted with `userxattr`, as in a user namespace it must be, reads this name; an ordinary user may write it."""
_WHITEOUT = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"
_AUFS = ".wh..wh."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORIES = 64
_IDS = 1 << 16
_NOBODY = 65534
_KEPT_ATTRIBUTES = ("user.", "security.capability", "system.posix_acl_")
_FOREIGN_ATTRIBUTES = ("user.overlay.", "trusted.overlay.")

Content = Callable[[], Iterator[memoryview]]


def parts(name: str, what: str = "its name") -> tuple[str, ...]:
    """The components of a member's name, if it stays below the root by what it says."""
    if name.startswith("/"):
        refuse(f"{what} is absolute")
    split = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in split:
        refuse(f"{what} leads out by '..'")
    if len(split) > MOST_LEVELS:
        refuse(f"{what} is more than {MOST_LEVELS} directories deep")
    return split


def refuse(reason: str) -> NoReturn:
    raise TarError(reason)


class Tree:
    """A directory being filled; all its entries are reached from one descriptor."""

    def __init__(self, root: int, *, keep_owners: bool, alone: bool = False) -> None:
        """`root` is a descriptor of the empty directory. Without `keep_owners` all is the caller's own, as is all there is.

        `alone`: it is no layer among others. A name that comes again is then what it says last, as with tar, and nothing is
        there to be hidden or linked to but itself.
        """
        self.size_bytes = 0
        self.digests: dict[int, bytes] = {}
        """Of each file's content, by inode."""
        self.missing_links: list[tuple[str, str]] = []
        """Hard links, (name, target), whose target is not in this layer."""
        self._root = root
        os.fchmod(root, 0o755)
        self._keep_owners = keep_owners
        self._alone = alone
        self._made: set[tuple[str, ...]] = set()
        self._directories: dict[tuple[str, ...], Member | None] = {(): None}
        self._opaque: set[tuple[str, ...]] = set()
        self._whiteouts: set[tuple[str, ...]] = set()
        self._open: dict[tuple[str, ...], int] = {}

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def add(self, member: Member, content: Content) -> None:
        path = parts(member.name)
        if member.kind == "directory":
            self._add_directory(path, member)
        elif not path:
            refuse("the root is not a directory")
        elif path[-1].startswith(_WHITEOUT) and not self._alone:
            self._hide(path)
        elif member.kind == "device":
            # /dev is made by the substrate; a device anywhere else would be a way to the host's own.
            if path[0] != "dev":
                refuse("it is a device node")
        else:
            self._make(path, member, content)

    # ---- what hides lower layers

    def _hide(self, path: tuple[str, ...]) -> None:
        *above, name = path
        if name == _OPAQUE_MARK:
            self._directory(tuple(above))
            self._opaque.add(tuple(above))
            return
        if name.startswith(_AUFS):  # what aufs kept for itself
            return
        hidden = (*above, name.removeprefix(_WHITEOUT))
        if hidden[-1] in ("", ".", ".."):
            refuse("it hides no name")
        self._whiteouts.add(hidden)

    def _finish_hiding(self) -> None:
        """Last: what a layer hides is what is below it, never what it brings itself, in whatever order it says so."""
        for path in self._whiteouts:
            if path in self._directories:
                self._opaque.add(path)
            elif path not in self._made:
                os.mknod(path[-1], stat.S_IFCHR | 0o644, os.makedev(0, 0), dir_fd=self._directory(path[:-1]))
        for path in self._opaque:
            os.setxattr(self._directory(path), OPAQUE, b"y")

    # ---- what it brings

    def _add_directory(self, path: tuple[str, ...], member: Member) -> None:
        if path in self._made:
            refuse("it is there already as a link or a file")
        if path and path not in self._directories:
            os.mkdir(path[-1], 0o700, dir_fd=self._directory(path[:-1]))
        # Owners and modes come last: who may not enter a directory could not fill it.
        self._directories[path] = member

    def _make(self, path: tuple[str, ...], member: Member, content: Content) -> None:
        directory, name = self._directory(path[:-1]), path[-1]
        if path in self._directories:
            refuse("its name is that of a directory")
        if path in self._made and not self._alone:
            refuse("its name is there twice")
        if path in self._made:
            self._check_link(path, member)
            os.unlink(name, dir_fd=directory)  # made anew and not opened: it may be a link by now
            self._made.discard(path)
        if member.kind == "file":
            self._make_file(name, directory, member, content)
        elif member.kind == "link":
            os.symlink(member.link, name, dir_fd=directory)
            self._dress_entry(name, directory, member)
        elif member.kind == "hard link":
            if not self._make_hard_link(path, directory, member):
                return
        else:
            os.mkfifo(name, 0o600, dir_fd=directory)
            os.chmod(name, member.mode & 0o777, dir_fd=directory)
            self._dress_entry(name, directory, member)
        self._made.add(path)

    def _make_file(self, name: str, directory: int, member: Member, content: Content) -> None:
        file = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
        try:
            digest = _fill(file, member, content)
            self.digests[os.fstat(file).st_ino] = digest
            self.size_bytes += member.size
            self._dress(file, member)
        finally:
            os.close(file)

    def _check_link(self, path: tuple[str, ...], member: Member) -> tuple[str, ...]:
        """Where a hard link leads, if there is a way."""
        if member.kind != "hard link":
            return ()
        target = parts(member.link, "its link's target")
        if not target:
            refuse("it is a hard link to the root")
        if target == path:
            refuse("it is a hard link to itself")
        if target in self._directories:
            refuse("it is a hard link to a directory")
        for count in range(1, len(target)):
            if target[:count] in self._made:
                refuse(f"its link's target passes through {'/'.join(target[:count])[:200]!r}, which is a link or a file")
        return target

    def _make_hard_link(self, path: tuple[str, ...], directory: int, member: Member) -> bool:
        target = self._check_link(path, member)
        if target not in self._made:
            if self._alone:
                refuse(f"it is a hard link to {member.link[:200]!r}, which is missing")
            self.missing_links.append(("/".join(path), "/".join(target)))
            return False
        os.link(target[-1], path[-1], src_dir_fd=self._directory(target[:-1]), dst_dir_fd=directory, follow_symlinks=False)
        return True

    # ---- owners, modes, times, attributes

    def finish(self) -> None:
        """Give directories their owners, modes and times, the deepest first."""
        self._finish_hiding()
        for path in sorted(self._directories, key=len, reverse=True):
            if (member := self._directories[path]) is not None:
                self._dress(self._directory(path), member)

    def _dress(self, descriptor: int, member: Member) -> None:
        if self._keep_owners and (member.uid or member.gid):
            os.fchown(descriptor, _owner(member.uid), _owner(member.gid))
        os.fchmod(descriptor, member.mode)  # after the owner, a change of which clears set-user-ID; content does too
        if member.xattrs:
            self._set_attributes(descriptor, member)
        os.utime(descriptor, ns=(member.mtime_ns, member.mtime_ns))

    def _dress_entry(self, name: str, directory: int, member: Member) -> None:
        if self._keep_owners and (member.uid or member.gid):
            os.chown(name, _owner(member.uid), _owner(member.gid), dir_fd=directory, follow_symlinks=False)
        os.utime(name, ns=(member.mtime_ns, member.mtime_ns), dir_fd=directory, follow_symlinks=False)

    def _set_attributes(self, descriptor: int, member: Member) -> None:
        for name, value in member.xattrs.items():
            if name.startswith(_FOREIGN_ATTRIBUTES):
                refuse(f"its attribute {name!r} would speak to overlayfs")
            if not name.startswith(_KEPT_ATTRIBUTES):
                continue  # labels of the machine it was built on
            try:
                os.setxattr(descriptor, name, value)
            except OSError as error:
                # With one id there is nobody else an access list could name; capabilities take a user namespace.
                if self._keep_owners or error.errno not in (errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP):
                    raise

    # ---- directories

    def _directory(self, path: tuple[str, ...]) -> int:
        """A descriptor of the directory `path`, made with its parents if it is missing; kept open for a while."""
        if not path:
            return self._root
        if (found := self._open.get(path)) is not None:
            return found
        above = self._directory(path[:-1])
        if path not in self._directories:
            if path in self._made:
                refuse(f"it passes through {'/'.join(path)[:200]!r}, which is a link or a file, not a directory")
            os.mkdir(path[-1], 0o755, dir_fd=above)
            os.chmod(path[-1], 0o755, dir_fd=above)  # noqa: S103 - as in any root file system, whatever the umask
            self._directories[path] = None
        descriptor = os.open(path[-1], _DIRECTORY, dir_fd=above)
        if len(self._open) >= _OPEN_DIRECTORIES:
            self._forget_some(path)
        self._open[path] = descriptor
        return descriptor

    def _forget_some(self, path: tuple[str, ...]) -> None:
        """Close the older half, but not what is on the way to `path`: callers up the stack are using it."""
        for old in list(self._open)[: _OPEN_DIRECTORIES // 2]:
            if path[: len(old)] != old:
                os.close(self._open.pop(old))

    def complete(self, name: str, mode: int) -> None:
        """Make the directory `name` if nothing is there; whatever else is there, a link say, stays what it is."""
        path = parts(name)
        if not path or path in self._made or path in self._directories:
            return
        with suppress(TarError):
            os.fchmod(self._directory(path), mode)


def _owner(id: int) -> int:
    """A sandbox has 65,536 ids: who is beyond them is nobody there, and would be nobody who could be copied up."""
    return id if 0 <= id < _IDS else _NOBODY


def _fill(file: int, member: Member, content: Content) -> bytes:
    """Write the content, and return its digest. The holes of a sparse file stay holes, and count as zeros."""
    digest = hashlib.sha256()
    if member.extents is not None:
        _fill_sparse(file, member, content, digest.update)
        return digest.digest()
    for piece in content():
        digest.update(piece)
        while piece:
            piece = piece[os.write(file, piece) :]  # noqa: PLW2901 - the rest of it
    return digest.digest()


def _fill_sparse(file: int, member: Member, content: Content, update: Callable[[bytes | memoryview], object]) -> None:
    pieces = content()
    rest = memoryview(b"")
    at = 0
    for offset, length in member.extents or ():
        _zeros(offset - at, update)
        at = offset
        while at < offset + length:
            rest = rest or next(pieces)
            piece = rest[: offset + length - at]
            written = os.pwrite(file, piece, at)
            update(piece[:written])
            at += written
            rest = rest[written:]
    _zeros(member.size - at, update)
    os.ftruncate(file, member.size)
    for _ in pieces:  # so that the reader stands behind it
        refuse("its sparse map does not fit its content")


def _zeros(count: int, update: Callable[[bytes], object]) -> None:
    block = bytes(min(count, 1 << 20))
    while count:
        update(block[:count] if count < len(block) else block)
        count -= min(count, len(block))
