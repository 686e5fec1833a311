"""A file tree in memory: files, directories, links and devices, with modes, owners and a quota.

What the kernel would refuse is raised as the OSError it would give.
"""

import errno
import os
import posixpath
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

READ, WRITE, SEARCH = 4, 2, 1
_MOST_LINKS = 40


@dataclass(slots=True)
class Node:
    """What every entry has."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0


@dataclass(slots=True)
class File(Node):
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Directory(Node):
    entries: dict[str, Node] = field(default_factory=dict[str, Node])
    sealed: bool = False
    """Read-only, whoever asks: a mount."""


@dataclass(slots=True)
class Link(Node):
    target: str = ""


@dataclass(slots=True)
class Device(Node):
    kind: Literal["null", "zero", "tty"] = "null"


@dataclass(slots=True)
class Computed(Node):
    """A file whose bytes were made when it was looked up, as in /proc."""

    data: bytes = b""


class Who(NamedTuple):
    """Whose rights apply."""

    uid: int = 0
    gid: int = 0

    def check(self, node: Node, want: int) -> None:
        if self.uid == 0:
            return
        shift = 6 if self.uid == node.uid else 3 if self.gid == node.gid else 0
        if (node.mode >> shift) & want != want:
            raise refusal(errno.EACCES)


ROOT = Who()


class Found(NamedTuple):
    """Where a path leads: the directory it is in, its name there, and the entry if there is one."""

    directory: Directory
    name: str
    node: Node | None


def refusal(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


class Tree:
    """One sandbox's file system. `quota_bytes` and `quota_nodes` bound what is added to the image."""

    def __init__(self, now_ns: Callable[[], int], quota_bytes: int | None = None, quota_nodes: int | None = None) -> None:
        self._now_ns = now_ns
        self.quota_bytes = quota_bytes
        self.quota_nodes = quota_nodes
        self.used_bytes = 0
        self.used_nodes = 0
        self.root = Directory(0o755)

    # ---- finding

    def find(self, path: str, who: Who = ROOT, *, follow: bool = True) -> Found:
        """Walk `path`, which is absolute; what is missing at its end is None, before it an error."""
        above = [self.root]
        parts = deque(_parts(path))
        hops = 0
        while parts:
            name = parts.popleft()
            here = above[-1]
            if name == "..":
                del above[max(1, len(above) - 1) :]
                continue
            who.check(here, SEARCH)
            node = here.entries.get(name)
            if isinstance(node, Link) and (parts or follow):
                hops += 1
                if hops > _MOST_LINKS:
                    raise refusal(errno.ELOOP, path)
                parts.extendleft(reversed(_parts(node.target)))
                if node.target.startswith("/"):
                    above = [self.root]
            elif not parts:
                return Found(here, name, node)
            elif node is None:
                raise refusal(errno.ENOENT, path)
            elif not isinstance(node, Directory):
                raise refusal(errno.ENOTDIR, path)
            else:
                above.append(node)
        return Found(above[-1], "", above[-1])

    def get(self, path: str, who: Who = ROOT, *, follow: bool = True) -> Node:
        node = self.find(path, who, follow=follow).node
        if node is None:
            raise refusal(errno.ENOENT, path)
        return node

    def directory(self, path: str, who: Who = ROOT) -> Directory:
        node = self.get(path, who)
        if not isinstance(node, Directory):
            raise refusal(errno.ENOTDIR, path)
        return node

    def exists(self, path: str, who: Who = ROOT) -> bool:
        try:
            self.get(path, who)
        except OSError:
            return False
        return True

    # ---- changing

    def open(self, path: str, who: Who, *, write: bool, truncate: bool = False, mode: int = 0o644) -> File | Device | Computed:
        """The file at `path`; opened for writing, it is made if it is missing."""
        found = self.find(path, who)
        node = found.node
        if node is None:
            if not write:
                raise refusal(errno.ENOENT, path)
            node = File(mode)
            self._add(found, node, who)
        if isinstance(node, Directory):
            raise refusal(errno.EISDIR, path)
        if write and found.directory.sealed:
            raise refusal(errno.EROFS, path)
        who.check(node, WRITE if write else READ)
        assert isinstance(node, File | Device | Computed)
        if isinstance(node, File) and truncate:
            self.put(node, b"", 0, truncate=True)
        return node

    def put(self, file: File, data: bytes, offset: int, *, truncate: bool = False) -> int:
        """Write as much as the quota allows; the number of bytes, or ENOSPC if it allows none."""
        end = offset + len(data)
        if self.quota_bytes is not None and end > len(file.data):
            room = self.quota_bytes - self.used_bytes + len(file.data) - offset
            if data and room <= 0:
                raise refusal(errno.ENOSPC)
            data = data[: max(room, 0)]
            end = offset + len(data)
        before = len(file.data)
        if offset > before:
            file.data.extend(bytes(offset - before))
        file.data[offset:end] = data
        if truncate:
            del file.data[end:]
        self.used_bytes += len(file.data) - before
        self.touch(file)
        return len(data)

    def touch(self, node: Node) -> None:
        node.mtime_ns = self._now_ns()

    def make_dir(self, path: str, who: Who = ROOT, mode: int = 0o755, *, parents: bool = False) -> Directory:
        """Make a directory; with `parents` those on the way too, and one that is there is fine."""
        if parents and (above := posixpath.dirname(path.rstrip("/"))) not in ("", "/", path):
            self.make_dir(above, who, parents=True)
        found = self.find(path, who)
        if found.node is not None:
            if isinstance(found.node, Directory) and parents:
                return found.node
            raise refusal(errno.EEXIST, path)
        made = Directory(mode)
        self._add(found, made, who)
        return made

    def link(self, path: str, target: str, who: Who = ROOT) -> None:
        """Make a symbolic link at `path`."""
        found = self.find(path, who, follow=False)
        if found.node is not None:
            raise refusal(errno.EEXIST, path)
        self._add(found, Link(0o777, target=target), who)

    def remove(self, path: str, who: Who = ROOT, *, recursive: bool = False) -> None:
        found = self.find(path, who, follow=False)
        if found.node is None:
            raise refusal(errno.ENOENT, path)
        if isinstance(found.node, Directory):
            if not recursive:
                raise refusal(errno.EISDIR, path)
            if not found.name:
                raise refusal(errno.EBUSY, path)
        _may_change(found.directory, who)
        del found.directory.entries[found.name]
        self._forget(found.node)

    def move(self, path: str, target: str, who: Who = ROOT) -> None:
        """Rename; a file that is at `target` is replaced, an empty directory too, as rename(2) does."""
        source = self.find(path, who, follow=False)
        if source.node is None:
            raise refusal(errno.ENOENT, path)
        goal = self.find(target, who, follow=False)
        _may_change(source.directory, who)
        _may_change(goal.directory, who)
        if goal.node is source.node:
            return
        if isinstance(goal.node, Directory) and not isinstance(source.node, Directory):
            raise refusal(errno.EISDIR, target)
        if isinstance(goal.node, Directory) and goal.node.entries:
            raise refusal(errno.ENOTEMPTY, target)
        if goal.node is not None and isinstance(source.node, Directory) and not isinstance(goal.node, Directory):
            raise refusal(errno.ENOTDIR, target)
        if _holds(source.node, goal.directory):
            raise refusal(errno.EINVAL, target)
        if goal.node is not None:
            self._forget(goal.node)
        del source.directory.entries[source.name]
        goal.directory.entries[goal.name] = source.node

    def _add(self, found: Found, node: Node, who: Who) -> None:
        _may_change(found.directory, who)
        if self.quota_nodes is not None and self.used_nodes >= self.quota_nodes:
            raise refusal(errno.ENOSPC)
        self.used_nodes += 1
        node.uid, node.gid, node.mtime_ns = who.uid, who.gid, self._now_ns()
        found.directory.entries[found.name] = node
        found.directory.mtime_ns = node.mtime_ns

    def _forget(self, node: Node) -> None:
        for gone in _all_of(node):
            self.used_nodes -= 1
            if isinstance(gone, File):
                self.used_bytes -= len(gone.data)

    # ---- copies

    def copy(self, behind_ns: int = 0) -> "Tree":
        """The same tree again, sharing nothing that can change; on a clock that is so much behind."""
        clock = self._now_ns
        twin = Tree((lambda: clock() - behind_ns) if behind_ns else clock, self.quota_bytes, self.quota_nodes)
        twin.used_bytes, twin.used_nodes = self.used_bytes, self.used_nodes
        root = _copied(self.root)
        assert isinstance(root, Directory)
        twin.root = root
        return twin


def _parts(path: str) -> list[str]:
    if "\0" in path:
        raise refusal(errno.EINVAL, path)
    return [part for part in path.split("/") if part not in ("", ".")]


def _holds(node: Node, directory: Directory) -> bool:
    """Whether `directory` is `node` or somewhere below it."""
    return node is directory or (isinstance(node, Directory) and any(_holds(one, directory) for one in node.entries.values()))


def _may_change(directory: Directory, who: Who) -> None:
    if directory.sealed:
        raise refusal(errno.EROFS)
    who.check(directory, WRITE)


def _all_of(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Directory):
        for entry in node.entries.values():
            yield from _all_of(entry)


def _copied(node: Node) -> Node:
    match node:
        case Directory():
            entries = {name: _copied(entry) for name, entry in node.entries.items()}
            return Directory(node.mode, node.uid, node.gid, node.mtime_ns, entries, node.sealed)
        case File():
            return File(node.mode, node.uid, node.gid, node.mtime_ns, bytearray(node.data))
        case _:
            return node  # links and devices never change in place
