"""What a container changed of the image it was made of, as the seam tells it."""

import io
import posixpath
import stat
import tarfile
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

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
_DIRECTORIES = 'for path; do if test -d "$path" && test ! -L "$path"; then printf "%s\\0" "$path"; fi; done'
_ASKED_AT_ONCE = 500
_REFERENCE_LEASE_S = 600.0


def told(changes: Iterable[Mapping[str, Any]], mounted: Collection[str]) -> dict[str, Kind]:
    """The daemon's list without what is no state of the sandbox: mounts, the way to them, and /tmp."""
    apart = (*_UNKEPT, *mounted)
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
    changes: list[dict[str, Any]] = msgspec.json.decode(listed) or []
    found = told(changes, container.mount_points(shown))
    directories = await _directories(handle, [path for path, kind in found.items() if kind != "added"])
    # One that was removed and made again is told as deleted; what was in it is told by nobody.
    replaced = {path for path in directories if found[path] == "deleted"}
    for path in directories:
        del found[path]
    if not contents and not replaced:
        return _sorted(found)
    async with _beginning(snapshots, shown["Image"]) as reference:
        for directory in replaced:
            _put_right(found, directory, await _archive(snapshots, reference, directory))
        if not contents:
            return _sorted(found)
        return tuple([await _with_contents(snapshots, reference, change) for change in _sorted(found)])


def _sorted(found: Mapping[str, Kind]) -> tuple[Change, ...]:
    """Of what was deleted with its directory, only the directory."""
    deleted = {path for path, kind in found.items() if kind == "deleted"}
    return tuple(
        Change(path=path, kind=found[path])
        for path in sorted(found)
        if found[path] != "deleted" or not any(parent in deleted for parent in _above(path))
    )


async def _directories(handle: Handle, paths: list[str]) -> set[str]:
    """Which of these are directories now."""
    found: set[str] = set()
    for at in range(0, len(paths), _ASKED_AT_ONCE):
        some = paths[at : at + _ASKED_AT_ONCE]
        seen = await handle.run(Exec(("sh", "-c", _DIRECTORIES, "sh", *some), cwd="/", user="0", timeout_s=60, keep=KEEP_ALL))
        found |= {path.decode("utf-8", "surrogateescape") for path in seen.stdout.split(b"\0") if path}
    return found


def _put_right(found: dict[str, Kind], directory: str, before: list[tarfile.TarInfo]) -> None:
    """Tell what is in a directory that was made again by what was in the one before it."""
    parent = posixpath.dirname(directory)
    for member in before:
        path = posixpath.join(parent, member.name.rstrip("/"))
        if path == directory:
            continue
        if path not in found:
            found[path] = "deleted"
        elif found[path] == "added" and member.isdir():
            del found[path]  # a directory before and after
        elif found[path] == "added":
            found[path] = "modified"


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


async def _archive(snapshots: Snapshots, reference: str, path: str) -> list[tarfile.TarInfo]:
    tar = await snapshots.engine.get(f"containers/{reference}/archive", {"path": path})
    if tar is None:
        return []
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return opened.getmembers()


async def _with_contents(snapshots: Snapshots, reference: str, change: Change) -> Change:
    if change.kind == "added":
        return change
    tar = await snapshots.engine.get(f"containers/{reference}/archive", {"path": change.path})
    if tar is None:
        return change
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        first = opened.next()
        if first is not None and first.issym():
            before, mode = first.linkname.encode("utf-8", "surrogateescape"), stat.S_IFLNK | 0o777
        elif first is not None and (data := opened.extractfile(first)) is not None:
            before, mode = data.read(), stat.S_IFREG | first.mode
        else:
            return change
    return msgspec.structs.replace(change, before=before, before_mode=mode)
