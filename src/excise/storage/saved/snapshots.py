"""Saved snapshots: states that outlive the process that took them, leased, listed and deleted.

saved/snapshots/ID.json    one, written beside and renamed when it is on the disk; its layers were there before it
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.storage.pins import Pin
from excise.storage.saved.layers import MOST_BYTES, SavedLayers, read
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import SessionState

VERSION = 1


class SavedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the disk of a snapshot. Never a secret: who starts from it names the spec, secrets included, again."""

    id: str
    layers: tuple[str, ...]
    """Digests of saved layers, the topmost first; below them is the image."""
    image: str
    """The image's name."""
    image_digest: str
    parent: str | None = None
    sessions: tuple[SessionState, ...] = ()
    size_bytes: int = 0
    until_s: float
    """Seconds since 1970: the end of its lease, whoever lives or not."""
    labels: Mapping[str, str] = {}
    version: int = VERSION


class Opened(NamedTuple):
    """A snapshot in use: its layers' trees stay until the pin is closed."""

    snapshot: SavedSnapshot
    paths: tuple[Path, ...]
    """The topmost first."""
    pin: Pin


class SavedSnapshots:
    """Those below `home`, the cache's if not said."""

    def __init__(self, keeper: Storekeeper, home: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.layers = SavedLayers(keeper, home, most_bytes)
        self._root = self.layers.records("snapshots")

    async def save(
        self,
        tops: Sequence[int],
        below: Sequence[str],
        *,
        image: str,
        image_digest: str,
        lease_s: float,
        parent: str | None = None,
        sessions: tuple[SessionState, ...] = (),
        labels: Mapping[str, str] | None = None,
    ) -> SavedSnapshot:
        """A snapshot of the layers `tops`, descriptors, over the saved ones `below`, digests; both topmost first."""
        with self.layers.pin(below):
            sizes = [self._there(digest) for digest in below]
            made, pin = await self.layers.save(tops) if tops else (None, nullcontext())  # nothing was written over `below`
            with pin:
                snapshot = SavedSnapshot(
                    id=uuid.uuid4().hex,
                    layers=(*(() if made is None else (made.digest,)), *below),
                    image=image,
                    image_digest=image_digest,
                    parent=parent,
                    sessions=sessions,
                    size_bytes=sum(sizes, 0 if made is None else made.size_bytes),
                    until_s=time.time() + lease_s,
                    labels=labels or {},
                )
                self._write(snapshot)
        return snapshot

    def _there(self, digest: str) -> int:
        layer = self.layers.get(digest)
        if layer is None:
            raise SubstrateError(f"saved layer {digest} is gone: take the snapshot again from a sandbox that has it")
        return layer.size_bytes

    def list(self) -> tuple[SavedSnapshot, ...]:
        """Those whose lease runs, the one that ends first first."""
        now_s = time.time()
        found = (read(path, SavedSnapshot) for path in self._root.glob("[!.]*.json"))
        return tuple(sorted((one for one in found if one and one.until_s > now_s), key=lambda one: (one.until_s, one.id)))

    def open(self, id: str) -> Opened:
        """Use it. SpecError if there is none, or not any more."""
        pin = self.layers.pin(self._find(id).layers)
        try:
            snapshot = self._find(id)  # again: it may have been collected before it was pinned
            for digest in snapshot.layers:
                self._there(digest)
        except BaseException:
            pin.close()
            raise
        return Opened(snapshot, tuple(self.layers.path(digest) for digest in snapshot.layers), pin)

    def renew(self, id: str, lease_s: float) -> SavedSnapshot:
        """Its lease ends so many seconds from now."""
        opened = self.open(id)
        with opened.pin:  # or what it is made of could go before it is said that it is needed
            renewed = msgspec.structs.replace(opened.snapshot, until_s=time.time() + lease_s)
            self._write(renewed)
        return renewed

    def delete(self, id: str) -> None:
        """Sandboxes made of it live on; what only it had goes when `layers` are next collected. Twice is fine."""
        self._path(id).unlink(missing_ok=True)

    async def verify(self, id: str) -> None:
        """Read all that it is made of; SubstrateError names the layer that is not what it was."""
        with self.open(id).pin:
            for digest in self._find(id).layers:
                await self.layers.verify(digest)

    # ---- records

    def _find(self, id: str) -> SavedSnapshot:
        found = read(self._path(id), SavedSnapshot)
        if found is None or found.until_s <= time.time():
            raise SpecError(f"there is no saved snapshot {id}: it was deleted, or its lease ended; take another one")
        return found

    def _path(self, id: str) -> Path:
        if not id.isalnum():
            raise SpecError(f"{id!r} is no snapshot's id: it is letters and digits")
        return self._root / f"{id}.json"

    def _write(self, snapshot: SavedSnapshot) -> None:
        self.layers.write(self._path(snapshot.id), msgspec.json.encode(snapshot))
