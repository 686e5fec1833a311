"""What changed: layers over others, compared name by name with what those others show alone."""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from excise.storage.trees import whole
from excise.storage.trees.merge import Hidden, Leaf, Merged, merged

Kind = Literal["added", "modified", "deleted"]
Side = Literal["before", "after"]
BOTH: tuple[Side, ...] = ("before", "after")
MOST_BYTES = 64 << 20


class Found(NamedTuple):
    """One path that is not what it was. Contents, where they were asked for, are a file's bytes and a link's target."""

    path: bytes
    """From the root, without a slash in front."""
    kind: Kind
    before_mode: int | None = None
    """`st_mode`, the type included."""
    mode: int | None = None
    before: bytes | None = None
    after: bytes | None = None


def diff(
    tops: Sequence[int],
    bases: Sequence[int],
    *,
    contents: Collection[Side] = (),
    most_bytes: int = MOST_BYTES,
    check: whole.Check = whole.nothing,
) -> list[Found]:
    """The difference that the layers `tops` make over the layers `bases`, each topmost first; sorted by path.

    A directory is in it if it was added or deleted, or has another mode, owner or attribute, never for what is in it. Of a
    deleted one, all that was below is there too. A file that was written again with what it held is not a change. Of
    `contents`, which are read of these sides alone, more than `most_bytes` is a TreeError.
    """
    with merged(tops) as new, merged(bases) as old:
        return sorted(_Diff(contents, most_bytes, check).directory(b"", new, old, 0), key=lambda found: found.path.split(b"/"))


class _Diff:
    def __init__(self, contents: Collection[Side], most_bytes: int, check: whole.Check) -> None:
        self._contents = contents
        self._left_bytes = self._most_bytes = most_bytes
        self._check = check

    def directory(self, path: bytes, new: Merged, old: Merged, level: int) -> Iterator[Found]:
        """Both are directories. Only what the new layers name can differ, unless they let nothing show through."""
        self._check()
        names = new.names()
        if new.cut:
            names = sorted({*names, *old.names()})
        for name in names:
            try:
                found = list(self._in_both(path + name, name, new, old, level))
            except FileNotFoundError:  # something lives there, and removed it while it was looked at
                with old.look(name) as before:
                    found = list(self._name(path + name, Hidden(), _shown(before), level))
            yield from found

    def _in_both(self, path: bytes, name: bytes, new: Merged, old: Merged, level: int) -> Iterator[Found]:
        with new.look(name) as now, old.look(name) as before:
            if now is not None:
                yield from self._name(path, now, _shown(before), level)
            elif new.cut:  # what is not in an opaque directory is not there
                yield from self._name(path, Hidden(), _shown(before), level)

    def _name(self, path: bytes, now: Hidden | Leaf | Merged, before: Leaf | Merged | None, level: int) -> Iterator[Found]:
        if isinstance(now, Merged) and isinstance(before, Merged):
            if _is_otherwise(now.status, before.status) or whole.attributes(now.top) != whole.attributes(before.top):
                yield Found(path, "modified", before.status.st_mode, now.status.st_mode)
            yield from self.directory(path + b"/", now, before, whole.level_below(level))
        elif isinstance(now, Leaf) and isinstance(before, Leaf):
            yield from self._leaves(path, now, before)
        else:
            yield from self._other(path, now, before, level)

    def _other(self, path: bytes, now: Hidden | Leaf | Merged, before: Leaf | Merged | None, level: int) -> Iterator[Found]:
        """It came, or went, or changed between a directory and something else."""
        if isinstance(now, Hidden) and before is None:
            return
        kind: Kind = "added" if before is None else "deleted" if isinstance(now, Hidden) else "modified"
        after = None if isinstance(now, Hidden) else now
        yield Found(path, kind, _mode(before), _mode(after), self._data(before, "before"), self._data(after, "after"))
        if isinstance(before, Merged):
            yield from self._all(path + b"/", before, "deleted", level)
        if isinstance(now, Merged):
            yield from self._all(path + b"/", now, "added", level)

    def _all(self, path: bytes, there: Merged, kind: Kind, level: int) -> Iterator[Found]:
        self._check()
        for name in there.names():
            with there.look(name) as found:
                if isinstance(found, Leaf | Merged):
                    mode, data = _mode(found), self._data(found, "before" if kind == "deleted" else "after")
                    yield (
                        Found(path + name, kind, mode, None, data)
                        if kind == "deleted"
                        else Found(path + name, kind, None, mode, None, data)
                    )
                if isinstance(found, Merged):
                    yield from self._all(path + name + b"/", found, kind, whole.level_below(level))

    def _leaves(self, path: bytes, now: Leaf, before: Leaf) -> Iterator[Found]:
        if _is_otherwise(now.status, before.status) or not self._is_same(now, before):
            was, is_now = self._data(before, "before"), self._data(now, "after")
            yield Found(path, "modified", before.status.st_mode, now.status.st_mode, was, is_now)

    def _is_same(self, now: Leaf, before: Leaf) -> bool:
        if (now.status.st_dev, now.status.st_ino) == (before.status.st_dev, before.status.st_ino):
            return True
        if stat.S_ISLNK(now.status.st_mode):
            return now.data(self._most_bytes) == before.data(self._most_bytes)
        if not stat.S_ISREG(now.status.st_mode):
            return now.status.st_rdev == before.status.st_rdev
        if now.status.st_size != before.status.st_size:
            return False
        return self._is_same_file(now, before)

    def _is_same_file(self, now: Leaf, before: Leaf) -> bool:
        one = whole.open_file(now.directory, now.name)
        try:
            other = whole.open_file(before.directory, before.name)
            try:
                if whole.attributes(one) != whole.attributes(other):
                    return False
                size = now.status.st_size
                theirs = whole.blocks(other, size, self._check)
                return all(block == next(theirs, None) for block in whole.blocks(one, size, self._check)) and not any(theirs)
            finally:
                os.close(other)
        finally:
            os.close(one)

    def _data(self, found: Leaf | Merged | None, side: Side) -> bytes | None:
        if side not in self._contents or not isinstance(found, Leaf):
            return None
        data = found.data(self._left_bytes)
        if data is None and stat.S_ISREG(found.status.st_mode):
            raise whole.TreeError(f"the changes hold more than {self._most_bytes:,} bytes: ask without their contents")
        self._left_bytes -= len(data or b"")
        return data


def _shown(found: Hidden | Leaf | Merged | None) -> Leaf | Merged | None:
    return None if isinstance(found, Hidden) else found


def _mode(found: Leaf | Merged | None) -> int | None:
    return None if found is None else found.status.st_mode


def _is_otherwise(now: os.stat_result, before: os.stat_result) -> bool:
    return (now.st_mode, now.st_uid, now.st_gid) != (before.st_mode, before.st_uid, before.st_gid)
