"""The cache of images: one directory each, named by what decides its content, and there only when it is complete.

images/KEY/image.json root/ root.tar     an image; root/ of one that has layers is a view of them, by hard links
images/.making-KEY/                      one being made, under the lock locks/KEY; renamed when it is whole
seen/IDENTITY                            the digest of a tar file, so that it is read once and not at every create
"""

import asyncio
import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.storage.background import in_thread, locked, to_end
from excise.storage.home import cache_dir
from excise.storage.layers import view
from excise.storage.layers.jobs import Remove
from excise.storage.layers.view import sync
from excise.storage.layers.workers import Workers
from excise.storage.pins import Pin, Pins

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAKING = ".making-"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A root file system and how programs in it expect to be started."""

    name: str
    digest: str
    """The content's address, `sha256:...`."""
    root: Path
    """The root file system, never to be written to. Its links lead astray outside it: never follow one from here."""
    binds: tuple[tuple[str, str], ...] = ()
    """(path on the host, path inside), to be shown read-only over `root`; the mount points are there. Only `host` has any."""
    env: Mapping[str, str] = {}
    workdir: str = "/"
    user: str | None = None
    tar: Path | None = None
    """The root file system as one tar, where it is kept."""
    size_bytes: int = 0
    layers: tuple[str, ...] = ()
    """Digests of the layers that `root` shows, the lowest first; none where it was unpacked as one."""
    key: str = ""
    """Its name in the cache, by which it is pinned."""
    over: tuple[Path, ...] = ()
    """Saved layers over `root`, the topmost first: what a spec's steps made of it. Only of an image in use."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What image.json holds: an Image without its place."""

    name: str
    digest: str
    binds: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = {}
    workdir: str = "/"
    user: str | None = None
    size_bytes: int = 0
    layers: tuple[str, ...] = ()


def find(key: str) -> Image | None:
    """The image at `key`, if it is in the cache and whole."""
    place = _images() / key
    try:
        record = msgspec.json.decode((place / "image.json").read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    tar = place / "root.tar"
    return Image(**msgspec.structs.asdict(record), root=place / "root", tar=tar if tar.exists() else None, key=key)


def pins() -> Pins:
    """Who holds which images, by key."""
    return Pins(_subdirectory("pins-images"))


def hold(key: str) -> Pin:
    """The image at `key` is not collected before the pin is closed, or this process ends."""
    try:
        return pins().pin((key,))
    except OSError as error:  # of a read-only file system, say
        raise _sentence(error) from None


def touch(key: str) -> None:
    """Remember that the image at `key` was used now."""
    with suppress(OSError):
        os.utime(_images() / key / "image.json")


def last_used_s(key: str) -> float:
    """When the image at `key` was used last, in seconds since 1970."""
    try:
        return (_images() / key / "image.json").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def found() -> dict[str, Image]:
    """Every image in the cache, by key."""
    keys = sorted(entry.name for entry in _images().iterdir() if not entry.name.startswith("."))
    return {key: image for key in keys if (image := find(key)) is not None}


async def make(key: str, fill: Callable[[Path], Awaitable[Record]]) -> Image:
    """The image at `key`; if there is none, `fill` makes root/ (and root.tar) in a directory that then takes its place.

    Of several processes that want it at once one makes it. Whatever goes wrong, nothing half-made is left.
    """
    if (image := find(key)) is not None:
        return image
    async with locked(_subdirectory("locks") / key):
        if (image := find(key)) is not None:
            return image
        place, making = _images() / key, _images() / f"{_MAKING}{key}"
        try:
            await _remove(making, place)  # what a killed process, or another version of Excise, left
            making.mkdir(mode=0o700)
            record = await fill(making)
            (making / "image.json").write_bytes(msgspec.json.encode(record))
            await asyncio.to_thread(sync, making)
            making.rename(place)
        except OSError as error:
            raise _sentence(error) from None
        finally:
            await to_end(_remove(making))
    image = find(key)
    assert image is not None
    return image


async def remove(key: str, *, unless: Callable[[str], bool] = lambda _: False) -> bool:
    """Take the image at `key` out of the cache, and say so; not if it is pinned or, asked when it cannot be, `unless`."""
    async with locked(_subdirectory("locks") / key):
        making = _images() / f"{_MAKING}{key}"
        try:
            _refuse_mounted(_images() / key)
            await _remove(making)
            with pins().collecting() as pinned:
                if key in pinned or unless(key) or not (_images() / key).exists():
                    return False
                (_images() / key).rename(making)  # at once and whole: nobody finds half an image
            await _remove(making)
        except OSError as error:
            raise _sentence(error) from None
    return True


async def clean() -> int:
    """Remove what killed processes left half-made; how many there were."""
    left = [entry.name.removeprefix(_MAKING) for entry in _images().iterdir() if entry.name.startswith(_MAKING)]
    for key in left:
        async with locked(_subdirectory("locks") / key):  # whoever makes it holds this
            await _remove(_images() / f"{_MAKING}{key}")
    return len(left)


async def _remove(*paths: Path) -> None:
    for path in paths:
        if not path.is_dir():
            continue
        try:
            await in_thread(lambda _, path=path: remove_tree(path))
        except PermissionError:  # with files of the user's subordinate ids in it
            async with Workers(1) as workers:
                await workers.run(Remove(str(path)))


def remove_tree(path: Path) -> None:
    """Remove a directory of ours with whatever modes its directories have."""
    _refuse_mounted(path)
    view.remove(path)


def _refuse_mounted(path: Path) -> None:
    """Deleting through a mount would delete what is mounted."""
    inside = f"{path.resolve()}/"
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            point = line.split()[4].replace("\\040", " ")
            if f"{point}/".startswith(inside):
                raise SubstrateError(f"{point} is mounted: close the sandbox that uses it, or unmount it, and try again")


def identity(*paths: Path) -> str:
    """What changes when any of these files or directories is written to or replaced."""
    stats = [(str(path), path.stat()) for path in paths if path.exists()]
    return "\n".join(f"{path} {s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}" for path, s in stats)


def recall(seen: str) -> str | None:
    """The digest that `remember` was told for this identity."""
    try:
        return _note(seen).read_text() or None
    except FileNotFoundError:
        return None


def remember(seen: str, digest: str) -> None:
    """Keep the digest of what has this identity, so that it is read once and not at every create."""
    note = _note(seen)
    beside = note.with_name(f".{note.name}.{os.getpid()}")
    try:
        beside.write_text(digest)
        beside.rename(note)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _sentence(error) from None


def _note(seen: str) -> Path:
    return _subdirectory("seen") / hashlib.sha256(os.fsencode(seen)).hexdigest()


def _images() -> Path:
    return _subdirectory("images")


def _subdirectory(name: str) -> Path:
    path = cache_dir() / name
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _sentence(error) from None
    return path


def _sentence(error: OSError) -> SubstrateError | SpecError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SubstrateError(f"the disk of {cache_dir()} is full: free some space there, or set EXCISE_HOME to a larger one")
    return SubstrateError(f"the cache {cache_dir()} cannot be used: {error.strerror or error} ({error.filename})")
