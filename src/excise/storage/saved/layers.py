"""Saved layers: trees copied into the store, each named by its digest, verified, shared, and never written again.

saved/layers/sha256-HEX/tree/        the layer as overlayfs stacks it      saved/layers/sha256-HEX/layer.json   what it is
saved/layers/.making-*               one in the making: pinned by its maker, renamed when it is whole and on the disk
saved/layers/.gone-*                 one on its way out
saved/KIND/*.json                    states that have layers, and until when: snapshots, steps
saved/pins/                          what is in use, or is being made
"""

import errno
import os
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.storage.background import in_thread, to_end
from excise.storage.home import cache_dir
from excise.storage.layers.view import sync
from excise.storage.pins import Pin, Pins
from excise.storage.suitability import require_suitable
from excise.storage.trees.storekeeper import Storekeeper

MOST_BYTES = 64 << 30
"""What all saved layers may take, unless said otherwise."""
KINDS = ("snapshots", "steps")
"""Directories of records in saved/; what is in none of them is not needed."""
_MAKING, _GONE = ".making-", ".gone-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SavedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What layer.json holds."""

    digest: str
    size_bytes: int


class Leased(msgspec.Struct, frozen=True):
    """What every state's record says."""

    layers: tuple[str, ...]
    """Digests of saved layers, the topmost first."""
    until_s: float
    """Seconds since 1970: the end of its lease, whoever lives or not."""


class SavedLayers:
    """Those below `home`, the cache's if not said. Any number of processes may use one store at once."""

    def __init__(self, keeper: Storekeeper, home: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.home = (cache_dir() if home is None else home) / "saved"
        self._root = self.home / "layers"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._pins = Pins(self.home / "pins")
        self._keeper = keeper
        self._most_bytes = most_bytes
        self._suits = False

    # ---- what is there

    def path(self, digest: str) -> Path:
        """The layer's tree. Never write to it, never follow a link in it."""
        return self._root / _name(digest) / "tree"

    def get(self, digest: str) -> SavedLayer | None:
        """The layer, if it is there and whole."""
        try:
            return msgspec.json.decode((self._root / _name(digest) / "layer.json").read_bytes(), type=SavedLayer)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            raise self._corrupted(digest, "its record is damaged") from None

    def held(self) -> tuple[SavedLayer, ...]:
        """Every layer there is."""
        names = sorted(entry.name for entry in self._root.iterdir() if not entry.name.startswith("."))
        return tuple(layer for name in names if (layer := self.get(name.replace("-", ":", 1))) is not None)

    def pin(self, digests: Iterable[str]) -> Pin:
        """Keep these layers, whether they are there yet or not, from being collected."""
        return self._pins.pin(_name(digest) for digest in digests)

    async def verify(self, digest: str) -> None:
        """Read the whole layer; SubstrateError names it if it is not what it was."""
        if self.get(digest) is None:
            raise SubstrateError(f"there is no saved layer {digest} here")
        with opened(self.path(digest)) as tree:
            found = await self._keeper.digest(tree)
        if found != digest:
            raise self._corrupted(digest, f"its content is {found}")

    async def corrupted(self) -> tuple[int, tuple[str, ...]]:
        """How many layers there are, and what is wrong with which."""
        found: list[str] = []
        digests = [entry.name.replace("-", ":", 1) for entry in self._root.iterdir() if not entry.name.startswith(".")]
        for digest in digests:
            try:
                with self.pin([digest]):
                    await self.verify(digest)
            except SubstrateError as error:
                found.append(str(error))
        return len(digests), tuple(found)

    def _corrupted(self, digest: str, what: str) -> SubstrateError:
        place = self._root / _name(digest)
        return SubstrateError(f"saved layer {digest} is corrupted, {what}: remove {place}; steps are built again without it")

    # ---- making one

    async def save(self, layers: Sequence[int]) -> tuple[SavedLayer, Pin]:
        """Layers given as descriptors, topmost first, as one saved layer; and a pin on it, the caller's to close.

        Nobody may write to them meanwhile. What is there already is there once.
        """
        if not self._suits:
            require_suitable(self._root)
            self._suits = True
        making = self._root / f"{_MAKING}{uuid.uuid4().hex}"
        with self._pins.pin([making.name]):
            try:
                return await self._made(layers, making)
            except OSError as error:
                raise _unusable(self._root, error) from None
            finally:
                await to_end(self._removed(making))

    async def _made(self, layers: Sequence[int], making: Path) -> tuple[SavedLayer, Pin]:
        room = self._most_bytes - sum(layer.size_bytes for layer in self.held())
        (making / "tree").mkdir(mode=0o700, parents=True)
        with opened(making / "tree") as tree:
            try:
                await self._keeper.squash(layers, tree, max(room, 0))
            except SpecError as error:
                raise SpecError(f"{error}; saved layers may take {self._most_bytes:,} bytes together") from None
            digest = await self._keeper.digest(tree)
            if len(layers) == 1 and digest != await self._keeper.digest(layers[0]):
                raise SubstrateError("a layer changed while it was saved: stop what writes in it and try again")
            size_bytes = (await self._keeper.usage(tree)).size_bytes
        made = SavedLayer(digest=digest, size_bytes=size_bytes)
        (making / "layer.json").write_bytes(msgspec.json.encode(made))
        await in_thread(lambda _: sync(making))
        pin = self.pin([digest])
        try:
            self._publish(making, digest)
        except BaseException:
            pin.close()
            raise
        return made, pin

    def _publish(self, making: Path, digest: str) -> None:
        try:
            making.rename(self._root / _name(digest))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return  # it was there, or another was faster: the same
        sync_directory(self._root)

    # ---- records of states, which say how long layers are needed

    def records(self, kind: str) -> Path:
        """The directory of one kind of states' records: whatever else they say, they are Leased."""
        path = self.home / kind
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def write(self, path: Path, data: bytes) -> None:
        """Write a record so that at any moment, whatever happens, there is the old one or the new one."""
        beside = path.with_name(f".{uuid.uuid4().hex}")
        with self._pins.pin([beside.name]):
            try:
                descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(descriptor, "wb") as file:  # noqa: PTH123 - it is a descriptor
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                beside.rename(path)
            except OSError as error:
                raise _unusable(self.home, error) from None
            finally:
                beside.unlink(missing_ok=True)
        sync_directory(path.parent)

    async def collect(self) -> tuple[str, ...]:
        """Remove states whose lease ended, layers no state has and nobody uses, and what the killed left; which layers went."""
        taken: list[str] = []
        with self._pins.collecting() as pinned:  # nobody can pin any more
            keep = {*pinned, *self._needed(pinned)}
            for entry in tuple(self._root.iterdir()):
                if entry.name in keep or entry.name.startswith((_GONE, ".trial-")):
                    continue
                entry.rename(self._root / f"{_GONE}{uuid.uuid4().hex}")  # at once and whole: nobody finds half a layer
                if not entry.name.startswith("."):
                    taken.append(entry.name.replace("-", ":", 1))
        for left in self._root.glob(f"{_GONE}*"):
            await self._removed(left)
        return tuple(taken)

    def _needed(self, pinned: frozenset[str]) -> set[str]:
        """What states with a running lease are made of; the others' records go."""
        needed: set[str] = set()
        now_s = time.time()
        for path in (path for kind in KINDS for path in self.records(kind).iterdir()):
            if path.name.startswith("."):
                if path.name not in pinned:
                    path.unlink(missing_ok=True)
            elif (state := read(path, Leased)) is None or state.until_s <= now_s:
                path.unlink(missing_ok=True)
            else:
                needed.update(map(_name, state.layers))
        return needed

    async def _removed(self, place: Path) -> None:
        try:
            with opened(place) as tree:
                await self._keeper.remove(tree)
            os.rmdir(place)  # noqa: PTH106 - of an empty directory: as quick as any call
        except FileNotFoundError:  # it was published, or another collects, too
            return


@contextmanager
def opened(path: Path) -> Generator[int]:
    """A directory's descriptor, as long as it is needed."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def digest_of(tree: Path) -> str:
    """Of a layer's tree, which lies beneath a name that is its digest."""
    return tree.parent.name.replace("-", ":", 1)


T = TypeVar("T")


def read(path: Path, kind: type[T]) -> T | None:
    """The record at `path`; None if it is gone."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise SubstrateError(f"{path} is damaged: remove it") from None


def sync_directory(path: Path) -> None:
    """Bring the names in it to the disk."""
    with opened(path) as directory:
        os.fsync(directory)


def _name(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if kind != "sha256" or not value.isalnum():
        raise SpecError(f"{digest!r} names no saved layer: it is sha256: and 64 digits")
    return f"{kind}-{value}"


def _unusable(place: Path, error: OSError) -> SubstrateError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SubstrateError(f"the disk of {place} is full: free some space there, or set EXCISE_HOME to a larger one")
    return SubstrateError(f"the store {place} cannot be used: {error.strerror or error}")
