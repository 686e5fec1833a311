"""What differs between two states of a sandbox, as the seam tells it; pure."""

import os
import posixpath
import stat
from collections.abc import Collection, Iterable

from excise.storage.trees.diff import Found
from excise.substrate import Change

_NO_STATE = ("/tmp", "/dev", "/proc", "/sys")  # noqa: S108 - the sandbox's own


def told(
    found: Iterable[Found], taken_back: Iterable[Found], *, mounted: Collection[str], made: Collection[str]
) -> list[Change]:
    """`found`: what the present layers change of the others; `taken_back`: what those change of the present ones.

    `made`: directories that every root of the sandbox has. A name that only the others have was deleted since.
    """
    apart = (*_NO_STATE, *mounted)
    above = {parent for path in (*mounted, *made) for parent in _above(path)} | set(made)
    changes = {change.path: change for one in found if not _is_directory(one) and (change := _change(one))}
    for one in taken_back:
        if one.kind == "added":
            path = _path(one)
            changes.setdefault(path, Change(path=path, kind="deleted", before=one.after, before_mode=one.mode))
    return [
        changes[path]
        for path in sorted(changes)
        if not any(path == place or path.startswith(f"{place}/") for place in apart)
        and not (path in above and changes[path].kind == "added")
    ]


def without_contents(changes: Iterable[Change]) -> list[Change]:
    """Of a directory that was deleted, only itself; and nothing of what files held."""
    kept: list[Change] = []
    gone: set[str] = set()
    for change in changes:
        if change.kind == "deleted":
            if not gone.isdisjoint(_above(change.path)):
                continue
            gone.add(change.path)
        kept.append(Change(path=change.path, kind=change.kind))
    return kept


def _change(one: Found) -> Change:
    return Change(path=_path(one), kind=one.kind, before=one.before, before_mode=one.before_mode)


def _path(one: Found) -> str:
    return "/" + os.fsdecode(one.path)


def _is_directory(one: Found) -> bool:
    """One that is there before and after: what changed is in it, or is its own mode."""
    if one.kind != "modified" or one.mode is None or one.before_mode is None:
        return False
    return stat.S_ISDIR(one.mode) and stat.S_ISDIR(one.before_mode)


def _above(path: str) -> Iterable[str]:
    while path not in ("/", ""):
        path = posixpath.dirname(path)
        yield path
