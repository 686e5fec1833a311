"""The store of layers: each a directory named by its tar's digest, unpacked once, verified, shared, and never written again.

layers/sha256-HEX/tree/        the layer as overlayfs stacks it: a 0:0 device hides a name, user.overlay.opaque a directory
layers/sha256-HEX/layer.json   what it is                  layers/sha256-HEX/entries   every name in it, with all that it is
layers/.making-HEX-*           one in the making, under the lock locks/layer-HEX; renamed when it is whole and on the disk
layers/.gone-*                 one on its way out
"""

import errno
import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from excise.errors import SubstrateError
from excise.storage.background import locked, to_end
from excise.storage.home import cache_dir
from excise.storage.layers.jobs import LayerRecord, Progress, Remove, Source, Unpack, Verify
from excise.storage.layers.workers import Workers
from excise.storage.pins import Pin, Pins
from excise.storage.suitability import require_suitable

_MAKING, _GONE = ".making-", ".gone-"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that is there, whole."""

    digest: str
    """Of its uncompressed tar: what an image's configuration calls its diff id."""
    path: Path
    """The tree. Never write to it, never follow a link in it."""
    size_bytes: int
    links: tuple[tuple[str, str], ...] = ()
    """Hard links to files of lower layers, which only a view of both can show."""


class LayerStore:
    """Layers below `root`, the cache's if not said. Any number of processes may use one at once."""

    def __init__(self, root: Path | None = None) -> None:
        home = cache_dir() if root is None else root
        self.root = home / "layers"
        self._locks = home / "locks"
        for directory in (self.root, self._locks):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pins = Pins(home / "pins")

    def get(self, digest: str) -> Layer | None:
        """The layer, if it is there."""
        place = self.root / _name(digest)
        try:
            record = msgspec.json.decode((place / "layer.json").read_bytes(), type=LayerRecord)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            raise _corrupt(digest, "its record is damaged") from None
        return Layer(digest=record.digest, path=place / "tree", size_bytes=record.size_bytes, links=record.links)

    def held(self) -> tuple[Layer, ...]:
        """Every layer there is."""
        names = sorted(entry.name for entry in self.root.iterdir() if not entry.name.startswith("."))
        return tuple(layer for name in names if (layer := self.get(name.replace("-", ":", 1))) is not None)

    def pin(self, digests: tuple[str, ...], *, for_s: float | None = None) -> Pin:
        """Keep these layers, whether they are there yet or not, from being collected."""
        return self.pins.pin((_name(digest) for digest in digests), for_s=for_s)

    async def add(
        self,
        source: Source,
        diff_id: str,
        workers: Workers,
        *,
        digest: str | None = None,
        named: str | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> Layer:
        """The layer `diff_id`; unless it is there, unpacked from `source`, whose own bytes must have `digest`.

        Of several that want it at once, here or in other processes, one unpacks and the others wait for it.
        """
        if (layer := self.get(diff_id)) is not None:
            return layer
        async with locked(self._locks / f"layer-{_name(diff_id)}"):
            if (layer := self.get(diff_id)) is not None:
                return layer
            await self._sweep(diff_id, workers)
            require_suitable(self.root)
            making = self.root / f"{_MAKING}{_name(diff_id)}-{uuid.uuid4().hex}"
            making.mkdir(mode=0o700)
            job = Unpack(
                source=source, making=str(making), digest=digest, diff_id=diff_id, named=named or f"layer {diff_id[:19]}"
            )
            try:
                await workers.run(job, progress)
                self._commit(making, diff_id)
            except OSError as error:
                raise self._sentence(error) from None
            finally:
                if making.exists():
                    await to_end(workers.run(Remove(str(making))))
        layer = self.get(diff_id)
        assert layer is not None
        return layer

    async def verify(self, digest: str, workers: Workers) -> None:
        """Look through the whole layer; SubstrateError names it, and what in it is not as it was unpacked."""
        if self.get(digest) is None:
            raise SubstrateError(f"there is no layer {digest} here")
        if wrong := await workers.run(Verify(str(self.root / _name(digest)))):
            raise _corrupt(digest, wrong)

    async def remove(self, unneeded: Callable[[], Iterable[str]], workers: Workers) -> tuple[str, ...]:
        """Take out those of `unneeded`, asked when nobody can pin any more, that are not pinned; which were taken."""
        gone: list[Path] = []
        taken: list[str] = []
        with self.pins.collecting() as pinned:
            for digest in unneeded():
                place, away = self.root / _name(digest), self.root / f"{_GONE}{uuid.uuid4().hex}"
                if place.name not in pinned and place.is_dir():
                    place.rename(away)  # at once and whole: nobody finds half a layer
                    gone.append(away)
                    taken.append(digest)
        for away in gone:
            await workers.run(Remove(str(away)))
        return tuple(taken)

    async def clean(self, workers: Workers) -> int:
        """Remove what killed processes left behind; how many trees there were."""
        left = [entry for entry in self.root.iterdir() if entry.name.startswith(_GONE)]
        for entry in self.root.iterdir():
            if entry.name.startswith(_MAKING):
                name = entry.name.removeprefix(_MAKING).rpartition("-")[0]
                async with locked(self._locks / f"layer-{name}"):  # whoever makes it holds this
                    if entry.exists():
                        left.append(entry.rename(self.root / f"{_GONE}{uuid.uuid4().hex}"))
        for entry in left:
            await workers.run(Remove(str(entry)))
        return len(left)

    async def _sweep(self, digest: str, workers: Workers) -> None:
        for left in self.root.glob(f"{_MAKING}{_name(digest)}-*"):  # a killed process's: we hold the lock
            await workers.run(Remove(str(left)))

    def _commit(self, making: Path, digest: str) -> None:
        """The worker has brought the content to the disk; the name follows it there."""
        making.rename(self.root / _name(digest))
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sentence(self, error: OSError) -> SubstrateError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return SubstrateError(
                f"the disk of {self.root} is full: free some space (`excise image gc --keep SIZE`), or set EXCISE_HOME to "
                "a larger one"
            )
        return SubstrateError(f"the store {self.root} cannot be used: {error.strerror or error}")


def _name(digest: str) -> str:
    kind, colon, value = digest.partition(":")
    assert colon
    assert value.isalnum(), digest
    return f"{kind}-{value}"


def _corrupt(digest: str, what: str) -> SubstrateError:
    return SubstrateError(
        f"layer {digest} is corrupted, {what}: run `excise image rm` for the images that have it, and pull them again"
    )
