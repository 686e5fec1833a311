"""What differs between two trees."""

import stat
from collections.abc import Iterator
from typing import Literal

from excise.substrate import Change
from excise.substrates.fake.files import Directory, File, Link, Node, Tree

UNKEPT = ("/tmp", "/dev/shm")  # noqa: S108 - the pretend machine's own
"""Empty after every create, reset and fork; in no snapshot and no diff."""


def without_unkept(tree: Tree) -> Tree:
    """A copy of `tree` with nothing in it that a snapshot does not keep."""
    twin = tree.copy()
    for path in UNKEPT:
        for name in tuple(twin.directory(path).entries):
            twin.remove(f"{path}/{name}", recursive=True)
    return twin


def difference(before: Tree, now: Tree, *, contents: bool) -> tuple[Change, ...]:
    found = sorted(_below("", before.root, now.root), key=lambda one: one.path)
    deleted = {one.path for one in found if one.kind == "deleted"}
    return tuple(
        one if contents else Change(path=one.path, kind=one.kind)
        for one in found
        if contents or one.path.rpartition("/")[0] not in deleted
        if not one.path.startswith(tuple(f"{path}/" for path in UNKEPT))
    )


def _below(path: str, before: Directory, now: Directory) -> Iterator[Change]:
    for name in sorted(before.entries.keys() | now.entries.keys()):
        yield from _compared(f"{path}/{name}", before.entries.get(name), now.entries.get(name))


def _compared(path: str, old: Node | None, new: Node | None) -> Iterator[Change]:
    if isinstance(old, Directory) and isinstance(new, Directory):
        yield from _below(path, old, new)
    elif new is None and old is not None:
        yield _change(path, "deleted", old)
        if isinstance(old, Directory):
            yield from _below(path, old, Directory(old.mode))
    elif old is None:
        yield Change(path=path, kind="added")
        if isinstance(new, Directory):
            yield from _below(path, Directory(new.mode), new)
    elif old != new:
        yield _change(path, "modified", old)
        if isinstance(new, Directory):
            yield from _below(path, Directory(new.mode), new)


def _change(path: str, kind: Literal["modified", "deleted"], old: Node) -> Change:
    match old:
        case File():
            return Change(path=path, kind=kind, before=bytes(old.data), before_mode=stat.S_IFREG | old.mode)
        case Link():
            return Change(path=path, kind=kind, before=old.target.encode(), before_mode=stat.S_IFLNK | 0o777)
        case _:
            return Change(path=path, kind=kind)
