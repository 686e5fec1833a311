"""What a sandbox changed: two layers over one image, as runsc's tars have them, compared name by name."""

import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from excise.substrate import Change

_OPAQUE = "SCHILY.xattr.trusted.overlay.opaque"
_PIECE_BYTES = 1 << 20


class Entry(NamedTuple):
    """A file, link, directory or other at a path."""

    mode: int
    """`st_mode`, the type included."""
    owner: tuple[int, int]
    member: tarfile.TarInfo | None
    """In the layer; None: in the image."""


class View:
    """An image's files with a layer over them."""

    def __init__(self, root: Path, layer: tarfile.TarFile | None, given: frozenset[str]) -> None:
        """`given`: directories that are there although the image has none of them."""
        self._root = str(root)
        self._layer = layer
        self._given = given
        self._members = {_path(member.name): member for member in layer} if layer is not None else {}
        self._named: dict[str, set[str]] = {}
        for path in self._members:
            if path != "/":
                self._named.setdefault(posixpath.dirname(path), set()).add(posixpath.basename(path))
        self._covered: dict[str, bool] = {}

    def named(self, directory: str) -> set[str]:
        """The names in it that the layer has a word on."""
        return self._named.get(directory, set())

    def covers(self, directory: str) -> bool:
        """Whether nothing of the image's shows through there."""
        if directory == "/":
            return False
        if directory not in self._covered:
            member = self._members.get(directory)
            replaced = member is not None and (not member.isdir() or _OPAQUE in member.pax_headers)
            above = self.covers(posixpath.dirname(directory))
            self._covered[directory] = replaced or above or not stat.S_ISDIR(self._in_image(directory))
        return self._covered[directory]

    def _in_image(self, path: str) -> int:
        """`st_mode` there; 0: nothing. Only asked of what lies in directories of the image's own: no link leads out."""
        try:
            return os.lstat(self._root + path).st_mode
        except OSError:
            return stat.S_IFDIR | 0o777 if path in self._given else 0

    def entry(self, path: str) -> Entry | None:
        member = self._members.get(path)
        if member is not None:
            if member.ischr() and (member.devmajor, member.devminor) == (0, 0):
                return None  # removed
            target = self._target(member)
            return Entry(_type(target) | target.mode, (target.uid, target.gid), target)
        if self.covers(posixpath.dirname(path)):
            return None
        mode = self._in_image(path)
        if not mode:
            return None
        try:
            found = os.lstat(self._root + path)
        except OSError:
            return Entry(mode, (0, 0), None)  # given
        return Entry(mode, (found.st_uid, found.st_gid), None)

    def _target(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        return self._members.get(_path(member.linkname), member) if member.islnk() else member

    def names(self, directory: str) -> set[str]:
        """All that is in it."""
        found = {name for name in self.named(directory) if self.entry(posixpath.join(directory, name)) is not None}
        if not self.covers(directory):
            try:
                image = os.listdir(self._root + directory)  # noqa: PTH208 - names are enough
            except OSError:
                image = []
            found |= {name for name in image if self.entry(posixpath.join(directory, name)) is not None}
        return found

    def pieces(self, path: str, entry: Entry) -> Iterator[bytes]:
        """What a file holds, or where a link leads."""
        if stat.S_ISLNK(entry.mode):
            target = entry.member.linkname if entry.member is not None else str(Path(self._root + path).readlink())
            yield os.fsencode(target)
        elif stat.S_ISREG(entry.mode):
            with ExitStack() as held:
                if entry.member is None:
                    file = held.enter_context(open(self._root + path, "rb"))  # noqa: PTH123 - its name may be no text
                else:
                    assert self._layer is not None
                    file = self._layer.extractfile(entry.member)
                    assert file is not None
                    held.enter_context(file)
                while piece := file.read(_PIECE_BYTES):
                    yield piece


def _path(name: str) -> str:
    return posixpath.normpath(f"/{name}")


def _type(member: tarfile.TarInfo) -> int:
    kinds = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK, tarfile.FIFOTYPE: stat.S_IFIFO}
    kinds |= {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK}
    return kinds.get(member.type, stat.S_IFREG)


class _Comparison:
    def __init__(self, before: View, after: View, *, contents: bool) -> None:
        self._before, self._after, self._contents = before, after, contents

    def directory(self, path: str) -> Iterator[Change]:
        """It is one on both sides: only what a layer has a word on can differ, unless they cover different things."""
        names = self._before.named(path) | self._after.named(path)
        if self._before.covers(path) != self._after.covers(path):
            names |= self._before.names(path) | self._after.names(path)
        for name in sorted(names):
            yield from self._at(posixpath.join(path, name))

    def _at(self, path: str) -> Iterator[Change]:
        before, after = self._before.entry(path), self._after.entry(path)
        was, is_ = (entry is not None and stat.S_ISDIR(entry.mode) for entry in (before, after))
        if before is None and after is None:
            return
        if was and is_:
            yield from self.directory(path)
        elif before is None:
            yield Change(path=path, kind="added")
        elif after is None:
            yield self._with_contents(path, "deleted", before)
        elif self._differ(path, before, after):
            yield self._with_contents(path, "modified", before)
        if is_ and not was:
            for name in sorted(self._after.names(path)):
                yield from self._at(posixpath.join(path, name))
        if was and not is_ and self._contents:
            for name in sorted(self._before.names(path)):
                yield from self._at(posixpath.join(path, name))

    def _with_contents(self, path: str, kind: str, before: Entry) -> Change:
        assert kind in ("deleted", "modified")
        if not self._contents:
            return Change(path=path, kind=kind)
        plain = stat.S_ISREG(before.mode) or stat.S_ISLNK(before.mode)
        held = b"".join(self._before.pieces(path, before)) if plain else None
        return Change(path=path, kind=kind, before=held, before_mode=before.mode)

    def _differ(self, path: str, before: Entry, after: Entry) -> bool:
        # An ordinary user's image is that user's own on disk, and root's inside: its owners say nothing.
        comparable = os.geteuid() == 0 or (before.member is not None and after.member is not None)
        if before.mode != after.mode or (comparable and before.owner != after.owner):
            return True
        if before.member is None and after.member is None:
            return False  # the image's own, both times
        old, new = self._before.pieces(path, before), self._after.pieces(path, after)
        while True:
            one, other = next(old, b""), next(new, b"")
            if one != other:
                return True
            if not one:
                return False


def compared(root: Path, before: Path | None, after: Path, given: frozenset[str], *, contents: bool) -> tuple[Change, ...]:
    """What differs between the layers `before` (none: the image alone) and `after`, both tars; sorted by path."""
    with ExitStack() as held:
        was = None if before is None else held.enter_context(tarfile.open(before))
        now = held.enter_context(tarfile.open(after))
        found = _Comparison(View(root, was, given), View(root, now, given), contents=contents).directory("/")
        return tuple(sorted(found, key=lambda one: one.path))


def above(path: str) -> frozenset[str]:
    """`path` and every directory over it."""
    found = {path.rstrip("/") or "/"}
    while path not in ("/", ""):
        path = posixpath.dirname(path)
        found.add(path or "/")
    return frozenset(found)
