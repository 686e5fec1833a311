"""Control groups: which limits can be had here, found by trying; a sandbox's groups; and what dead owners left.

Every group lies in a directory called `excise`, and is named after its owner. On v1, where each controller has a tree of
its own, that directory is at the tree's top, as every engine's is. On v2 a group with members cannot give controllers to
groups below it, so it is the nearest group above our own that can: what sandboxes use then still counts against the limits
of whoever started us; and in it each launcher has a home, with a group for guests beside one for each sandbox's programs
(`native/launch/home.h`).

Everything here is synchronous and takes a fraction of a millisecond, but `find`, `collect` and `leave`.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from excise.host.sandboxes import owner_of
from excise.spec import Limits
from excise.substrates.namespace.orphans import remove
from excise.substrates.namespace.request import Cgroup

PARENT = "excise"
CONTROLLERS = {"memory": "memory_bytes", "cpu": "cpus", "pids": "pids"}
"""Each controller we use, and the limit it enforces."""

_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000  # the kernel takes no less
_MOST_CPUS = 8192  # nor more than this by far, and nobody has as many
_MOST_PIDS = 1 << 22  # the same
_NAMED = re.compile(r"[a-z]+-((\d+)-\d+)-[0-9a-f]{12}")


class Tree(msgspec.Struct, frozen=True):
    """A mounted hierarchy."""

    version: int
    controllers: frozenset[str]
    """On v1; a v2 tree says in `cgroup.controllers` what it has."""
    top: Path
    own: Path
    """The group this process is in, as far as it can be seen from here."""


class Groups(msgspec.Struct, frozen=True):
    """Where groups can be made, and what can be limited there."""

    parents: dict[str, Path] = {}
    """For each controller that can be had, the directory in which a sandbox gets its own. On v2 it is the same for all."""
    version: dict[str, int] = {}
    swap: bool = False
    """The kernel counts swap: a memory limit covers it."""

    @property
    def enforced(self) -> frozenset[str]:
        """Names of `Limits` fields, for Capabilities."""
        return frozenset(CONTROLLERS[controller] for controller in self.parents)

    def places(self, limits: Limits, name: str, home: str, *, every: bool = False) -> dict[str, Path]:
        """Where the groups of a sandbox called `name` are, of the launcher whose home is `home`: those its limits need, or
        `every` one that there can be."""
        wanted = [name for name, field in CONTROLLERS.items() if every or getattr(limits, field) is not None]
        return {
            controller: self.parents[controller] / (home if self.version[controller] == 2 else "") / name
            for controller in wanted
            if controller in self.parents
        }

    def plan(self, limits: Limits, name: str, home: str, *, every: bool = False) -> tuple[Cgroup, ...]:
        """These groups, and what holds them to `limits`. What is not enforced was refused before."""
        directories: dict[Path, list[tuple[str, str]]] = {}
        for controller, place in self.places(limits, name, home, every=every).items():
            written = directories.setdefault(place, [])
            if (value := getattr(limits, CONTROLLERS[controller])) is not None:
                written += values(controller, value, self.version[controller], swap=self.swap)
        return tuple(Cgroup(str(place), tuple(written), self._given(place)) for place, written in directories.items())

    def _given(self, group: Path) -> tuple[str, ...] | None:
        unified = tuple(name for name in CONTROLLERS if self.version.get(name) == 2)
        return unified if any(self.parents[name] == group.parents[1] for name in unified) else None


def values(controller: str, value: float | None, version: int, *, swap: bool) -> tuple[tuple[str, str], ...]:
    """What is written to hold a controller to `value`, in the order the kernel wants; None: to nothing."""
    if value is None:
        return _unlimited(controller, version, swap=swap)
    if controller == "pids":
        return (("pids.max", str(min(value, _MOST_PIDS))),)
    if controller == "cpu":
        quota_us = max(_LEAST_QUOTA_US, round(min(value, _MOST_CPUS) * _PERIOD_US))
        if version == 2:
            return (("cpu.max", f"{quota_us} {_PERIOD_US}"),)
        return ("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us))
    if version == 2:
        return ("memory.max", str(value)), *((("memory.swap.max", "0"),) if swap else ())
    return ("memory.limit_in_bytes", str(value)), *((("memory.memsw.limit_in_bytes", str(value)),) if swap else ())


def _unlimited(controller: str, version: int, *, swap: bool) -> tuple[tuple[str, str], ...]:
    limited = values(controller, 1, version, swap=swap)
    if version == 2 or controller == "pids":
        return tuple((file, "max") for file, _ in limited)
    return tuple((file, "-1") for file, _ in limited if file != "cpu.cfs_period_us")


def new_name(owner_pid: int, kind: str = "namespace") -> str:
    """For what lives no longer than the process `owner_pid`."""
    return f"{kind}-{owner_of(owner_pid)}-{uuid.uuid4().hex[:12]}"


# ---- finding


def find() -> Groups:
    """What can be had here: makes a group in each place, limits it and removes it again."""
    parents: dict[str, Path] = {}
    version: dict[str, int] = {}
    for tree in trees():  # on a hybrid machine a controller is in one tree only
        for controller, parent in (_unified(tree) if tree.version == 2 else _single(tree)).items():
            parents.setdefault(controller, parent)
            version.setdefault(controller, tree.version)
    return Groups(parents, version, swap="memory" in parents and _counts_swap(parents["memory"]))


def trees(mountinfo: str | None = None, membership: str | None = None) -> tuple[Tree, ...]:
    """The hierarchies mounted here, from the kernel's own texts."""
    mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    membership = Path("/proc/self/cgroup").read_text() if membership is None else membership
    own = {frozenset(line.split(":", 2)[1].split(",")): line.split(":", 2)[2] for line in membership.splitlines()}
    found: dict[Path, Tree] = {}
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        root, top = mount.split()[3:5]
        file_system, _, options = kind.split()[:3]
        if file_system == "cgroup2":
            path = own.get(frozenset([""]), "/")
            found[Path(top)] = Tree(2, frozenset(), Path(top), _below(top, root, path))
        elif file_system == "cgroup":
            carried = frozenset(options.split(",")) & CONTROLLERS.keys()
            path = next((path for names, path in own.items() if names & carried), "/")
            found[Path(top)] = Tree(1, carried, Path(top), _below(top, root, path))
    return tuple(found.values())


def _below(top: str, root: str, path: str) -> Path:
    """Where the group `path` is seen, if the part of the tree from `root` on is mounted at `top`."""
    inside = Path(path)
    if ".." in inside.parts or not inside.is_relative_to(root):
        return Path(top)  # outside of what this mount shows
    return Path(top) / inside.relative_to(root)


def _single(tree: Tree) -> dict[str, Path]:
    """On v1: at the top, or, where that is not ours to use, in our own group."""
    for place in dict.fromkeys((tree.top, tree.own)):
        parent = place / PARENT
        if tree.controllers and _made(parent):
            works = {controller for controller in tree.controllers if _limits(parent, controller, 1)}
            if works:
                return dict.fromkeys(works, parent)
    return {}


def _unified(tree: Tree) -> dict[str, Path]:
    """On v2: the nearest group above our own that can give what we want; if none gives all, the one that gives most."""
    best: dict[str, Path] = {}
    for place in candidates(tree):
        works = _delegated(place)
        if len(works) > len(best):
            best = dict.fromkeys(works, place / PARENT)
        if len(best) == len(CONTROLLERS):
            break
    return best


def candidates(tree: Tree) -> Iterator[Path]:
    """Our own group and those above it, the nearest first, as far as they are ours: a process may move only below a group
    whose `cgroup.procs` it may write."""
    place = tree.own
    while True:
        if os.access(place / "cgroup.procs", os.W_OK):
            yield place
        if place == tree.top:
            return
        place = place.parent


def _delegated(place: Path) -> set[str]:
    """The controllers that groups in `place`/excise can have."""
    if not offered(place):
        return set()
    _offer(place)
    parent = place / PARENT
    if not _made(parent):
        return set()
    _offer(parent)
    works = {controller for controller in CONTROLLERS if _limits(parent, controller, 2)}
    if not works:
        with contextlib.suppress(OSError):
            parent.rmdir()  # tried in vain
    return works


def offered(place: Path) -> frozenset[str]:
    """What a v2 group could give to those below it."""
    try:
        return frozenset((place / "cgroup.controllers").read_text().split()) & CONTROLLERS.keys()
    except OSError:
        return frozenset()


def _offer(place: Path) -> None:
    """Give groups below `place` what it has. It says no where `place` has members (but for the true root), or is not ours."""
    for controller in offered(place):
        with contextlib.suppress(OSError):
            (place / "cgroup.subtree_control").write_text(f"+{controller}")


def _limits(parent: Path, controller: str, version: int) -> bool:
    """Whether a group in `parent` can be held to something by this controller: tried with a limit no one would notice."""
    harmless = {"memory": 1 << 40, "cpu": 0.1, "pids": 1000}[controller]

    def limit(group: Path) -> bool:
        for file, value in values(controller, harmless, version, swap=False):
            # Opened, never made: on a tree that is no control group's, a file would appear and mean nothing.
            descriptor = os.open(group / file, os.O_WRONLY)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        return True

    return _tried(parent, limit)


def _counts_swap(parent: Path) -> bool:
    files = ("memory.swap.max", "memory.memsw.limit_in_bytes")
    return _tried(parent, lambda group: any((group / file).exists() for file in files))


def _tried(parent: Path, attempt: Callable[[Path], bool]) -> bool:
    group = parent / new_name(os.getpid())
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        return attempt(group)
    except OSError:
        return False
    finally:
        group.rmdir()


def _made(parent: Path) -> bool:
    try:
        parent.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(parent, os.W_OK)


# ---- what is left


def collect() -> tuple[str, ...]:
    """Remove the groups whose owner is gone, and end what still runs in them. Returns their names, each once."""
    removed: set[str] = set()
    for group in _owned(tree.top for tree in trees()):
        if _orphan(group.name):
            for below in _below_it(group):
                if remove(below) and _NAMED.fullmatch(below.name):
                    removed.add(below.name)
            if remove(group):
                removed.add(group.name)
    return tuple(sorted(removed))


def leave(home: Path) -> None:
    """Remove a launcher's home, once it has ended and taken its sandboxes with it."""
    for group in (*_below_it(home), home):
        remove(group)


def _below_it(home: Path) -> tuple[Path, ...]:
    """The groups in a launcher's home; a sandbox's own has none."""
    try:
        return tuple(path for path in home.iterdir() if path.is_dir())
    except OSError:
        return ()


def _owned(tops: Iterable[Path]) -> Iterator[Path]:
    """Every group in a directory called `excise`, wherever a session of ours may have been when it made it."""
    for top in tops:
        for directory, below, _ in os.walk(top):
            if Path(directory).name == PARENT:
                yield from (Path(directory) / name for name in below if _NAMED.fullmatch(name))
                below.clear()


def _orphan(name: str) -> bool:
    named = _NAMED.fullmatch(name)
    return named is not None and named[1] != owner_of(int(named[2]))
