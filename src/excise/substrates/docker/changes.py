"""What a container changed of the image it was made of, as the seam tells it."""

import io
import posixpath
import stat
import tarfile
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from excise.action import KEEP_ALL, Exec
from excise.errors import SandboxLost
from excise.handles import finish
from excise.substrate import Change, Handle
from excise.substrates.docker import container
from excise.substrates.docker.snapshots import Snapshots

Kind = Literal["added", "modified", "deleted"]
_KINDS: tuple[Kind, ...] = ("modified", "added", "deleted")  # by the daemon's numbers
_UNKEPT = ("/tmp", "/dev", "/proc", "/sys")  # noqa: S108 - the sandbox's own
_DAEMONS = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
_DIRECTORIES = 'for path; do if test -d "$path" && test ! -L "$path"; then printf "%s\\0" "$path"; fi; done'
# /.dockerenv is as old as the container. A find that has no -cnewer finds nothing, and the daemon's word has to do.
_TOUCHED = "find / -xdev -path /tmp -prune -o -type f -cnewer /.dockerenv -print0 2>/dev/null"
_ASKED_AT_ONCE = 500
_REFERENCE_LEASE_S = 600.0


class Side(NamedTuple):
    """A file or a link, and what it holds; without mode and data if it is neither."""

    path: str
    mode: int | None
    data: bytes | None


def told(changes: Iterable[Mapping[str, Any]], mounted: Collection[str]) -> dict[str, Kind]:
    """The daemon's list without what is no state of the sandbox: mounts, the way to them, and /tmp."""
    apart = (*_UNKEPT, *_DAEMONS, *mounted)
    above = {parent for target in mounted for parent in _above(target)}
    return {
        one["Path"]: _KINDS[one["Kind"]]
        for one in changes
        if one["Path"] not in above and not any(one["Path"] == place or one["Path"].startswith(f"{place}/") for place in apart)
    }


def _above(path: str) -> Iterable[str]:
    while path not in ("/", ""):
        path = posixpath.dirname(path)
        yield path


async def compared(snapshots: Snapshots, handle: Handle, container_id: str, *, contents: bool) -> tuple[Change, ...]:
    """What changed since the container began."""
    engine = snapshots.engine
    with engine.losses():
        shown = await engine.show(container_id)
    listed = await engine.get(f"containers/{container_id}/changes")
    if listed is None:
        raise SandboxLost("the sandbox's container is gone")
    reported: list[dict[str, Any]] = msgspec.json.decode(listed) or []
    found = told(reported, container.mount_points(shown))
    for path in await _overlooked(snapshots, handle, shown, found):
        found[path] = "modified"
    for path in await _directories(handle, [path for path, kind in found.items() if kind == "modified"]):
        del found[path]
    changes = [Change(path=path, kind=found[path]) for path in sorted(found)]
    if not contents:
        return tuple(changes)
    async with _beginning(snapshots, shown["Image"]) as reference:
        filled = [await _with_contents(snapshots, reference, change) for change in changes]
    return tuple(sorted((one for some in filled for one in some), key=lambda one: one.path))


async def _overlooked(snapshots: Snapshots, handle: Handle, shown: Mapping[str, Any], found: Collection[str]) -> list[str]:
    """Files whose bytes changed within the second of their time, their length the same: the daemon takes them for unchanged."""
    seen = await handle.run(Exec(("sh", "-c", _TOUCHED, "sh"), cwd="/", user="0", keep=KEEP_ALL))
    paths = (path.decode("utf-8", "surrogateescape") for path in seen.stdout.split(b"\0") if path)
    unseen = [{"Path": path, "Kind": 0} for path in paths if path not in found]
    suspects = told(unseen, container.mount_points(shown))
    if not suspects:
        return []
    async with _beginning(snapshots, shown["Image"]) as reference:
        return [
            path
            for path in suspects
            if await _members(snapshots, reference, path) != await _members(snapshots, shown["Id"], path)
        ]


async def _directories(handle: Handle, paths: list[str]) -> set[str]:
    """Which of these are directories now."""
    found: set[str] = set()
    for at in range(0, len(paths), _ASKED_AT_ONCE):
        some = paths[at : at + _ASKED_AT_ONCE]
        seen = await handle.run(Exec(("sh", "-c", _DIRECTORIES, "sh", *some), cwd="/", user="0", timeout_s=60, keep=KEEP_ALL))
        found |= {path.decode("utf-8", "surrogateescape") for path in seen.stdout.split(b"\0") if path}
    return found


@asynccontextmanager
async def _beginning(snapshots: Snapshots, image: str) -> AsyncGenerator[str]:
    """A container of `image` that never runs: it shows what files held at the start."""
    id_ = uuid.uuid4().hex
    labels = {container.OWNED: "1", container.REQUEST: f"diff-{id_}", container.LABELS: "{}", container.SANDBOX: ""}
    labels |= {container.LEASE: f"{time.time() + _REFERENCE_LEASE_S:.3f}", container.SNAPSHOT: ""}
    config = {"Image": image, "Entrypoint": ["sh"], "Labels": labels, "HostConfig": {"NetworkMode": "none"}}
    made = await snapshots.create(f"excise-diff-{id_}", config)
    try:
        yield made
    finally:
        await finish(snapshots.engine.remove(made))


async def _members(snapshots: Snapshots, container_id: str, path: str) -> list[Side]:
    """The file, the link or what is in the directory at `path`; empty if there is nothing."""
    tar = await snapshots.engine.get(f"containers/{container_id}/archive", {"path": path})
    if tar is None:
        return []
    above = posixpath.dirname(path)
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return [_side(opened, member, posixpath.join(above, member.name.rstrip("/"))) for member in opened]


def _side(opened: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Side:
    if member.issym():
        return Side(path, stat.S_IFLNK | 0o777, member.linkname.encode("utf-8", "surrogateescape"))
    data = opened.extractfile(member)
    return Side(path, None, None) if data is None else Side(path, stat.S_IFREG | member.mode, data.read())


async def _with_contents(snapshots: Snapshots, reference: str, change: Change) -> list[Change]:
    """What it held before; a directory that was deleted, with all that was in it."""
    if change.kind == "added":
        return [change]
    before = await _members(snapshots, reference, change.path)
    if change.kind == "modified":
        before = before[:1]
    return [Change(path=one.path, kind=change.kind, before=one.data, before_mode=one.mode) for one in before] or [change]
