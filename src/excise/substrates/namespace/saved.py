"""Kept snapshots, as the sandboxes of one open substrate use them: saved layers instead of a launcher's."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from weakref import WeakValueDictionary

import msgspec

from excise.errors import SpecError
from excise.spec import Spec
from excise.storage.image import Image
from excise.storage.saved.layers import digest_of, opened
from excise.storage.saved.snapshots import SavedSnapshot, SavedSnapshots
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import SessionState, Snapshot
from excise.substrates.namespace.layers import Hold, Stack
from excise.substrates.namespace.proof import Proof
from excise.substrates.namespace.snapshots import Kept

MOST_LAYERS = 16
"""A snapshot that would lie on more saved layers is saved as one: each look-up of a name asks every layer."""


class Saved:
    """The store of kept snapshots; opened when it is first needed."""

    def __init__(self, address: str, storekeeper: Storekeeper, image: Callable[[str], Awaitable[Image]]) -> None:
        self._address = address
        self._storekeeper = storekeeper
        self._image = image
        self._opened: SavedSnapshots | None = None
        self._proofs = WeakValueDictionary[str, Proof]()

    def _store(self) -> SavedSnapshots:
        if self._opened is None:
            self._opened = SavedSnapshots(self._storekeeper)
        return self._opened

    async def save(
        self,
        tops: Sequence[int],
        image: Image,
        spec: Spec,
        *,
        parent: str | None,
        keep_s: float,
        sessions: tuple[SessionState, ...],
    ) -> Snapshot:
        """A snapshot of the layers `tops`, descriptors, the topmost first, over `image` and what lies over that."""
        below = tuple(map(digest_of, image.over))
        with ExitStack() as stack:
            if len(below) >= MOST_LAYERS:
                tops = [*tops, *(stack.enter_context(opened(tree)) for tree in image.over)]
                below = ()
            made = await self._store().save(
                tops,
                below,
                image=image.name,
                image_digest=image.digest,
                lease_s=keep_s,
                parent=parent,
                sessions=sessions,
            )
        return msgspec.structs.replace(self._told(made), spec=spec, lease_s=keep_s)

    def _told(self, saved: SavedSnapshot) -> Snapshot:
        return Snapshot(
            id=saved.id,
            address=self._address,
            spec=Spec(image=saved.image),
            parent=saved.parent,
            carries="files",
            size_bytes=saved.size_bytes,
            lease_s=max(0.0, saved.until_s - time.time()),
            sessions=saved.sessions,
        )

    def list(self) -> tuple[Snapshot, ...]:
        """Those whose lease runs, whoever took them."""
        return tuple(map(self._told, self._store().list()))

    async def find(self, snapshot: Snapshot) -> Kept:
        """To be used with the spec that `snapshot` says, and released. SpecError if there is none, or not any more."""
        try:
            found = self._store().open(snapshot.id)
        except SpecError:
            raise SpecError(
                f"{self._address} has no snapshot {snapshot.id}: it was discarded, its lease ended, or the client that took it"
                " is closed; take another one, with keep_s=, or with the substrate left open for as long as it is needed"
            ) from None
        hold = Hold(found.pin)
        try:
            image = await self._image(snapshot.spec.image)
            _require_same(image, found.snapshot)
        except BaseException:
            hold.release()
            raise
        used = msgspec.structs.replace(self._told(found.snapshot), spec=snapshot.spec)
        proof = self._proofs.setdefault(snapshot.id, Proof())
        return Kept(used, Stack(), msgspec.structs.replace(image, over=found.paths), proof, hold)

    def delete(self, snapshot: Snapshot) -> None:
        """Twice is fine. Sandboxes made of it live on."""
        if snapshot.id.isalnum():  # else it was never one of these
            self._store().delete(snapshot.id)


def _require_same(image: Image, saved: SavedSnapshot) -> None:
    """What was written is what differs from one image, and no state over another."""
    if image.digest != saved.image_digest:
        raise SpecError(
            f"snapshot {saved.id} lies over image {saved.image!r} as it was ({saved.image_digest}), and {image.name!r} is"
            f" {image.digest} here: name the image it was taken on in its spec, or take another snapshot"
        )
