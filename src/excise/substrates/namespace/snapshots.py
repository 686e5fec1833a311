"""The snapshots of one open substrate: what each is made of, until it is discarded, its lease ends, or the substrate closes."""

import asyncio
import contextvars
import uuid
from typing import NamedTuple

from excise.spec import Spec
from excise.storage.image import Image
from excise.substrate import SessionState, Snapshot
from excise.substrates.namespace.layers import Hold, Layer, Stack
from excise.substrates.namespace.proof import Proof


class Kept(NamedTuple):
    """A snapshot as it can be used here."""

    snapshot: Snapshot
    stack: Stack
    image: Image
    """With the saved layers that the stack lies over."""
    proof: Proof
    hold: Hold | None = None
    """On those of them that another snapshot was saved as."""
    lease: asyncio.TimerHandle | None = None
    """None: it ends on the disk."""

    def taken(self) -> "Kept":
        """For one more who uses it, and releases it."""
        return self._replace(stack=Stack(self.stack.layers), hold=self.hold and self.hold.take())

    def release(self) -> None:
        self.stack.release()
        if self.hold is not None:
            self.hold.release()


class Snapshots:
    """Each by its id."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._kept: dict[str, Kept] = {}

    def keep(
        self,
        layers: tuple[Layer, ...],
        image: Image,
        spec: Spec,
        *,
        parent: str | None,
        lease_s: float,
        sessions: tuple[SessionState, ...],
        hold: Hold | None = None,
    ) -> Snapshot:
        """A snapshot of a sandbox that is made of these layers over `image`."""
        made = Snapshot(
            id=uuid.uuid4().hex,
            address=self._address,
            spec=spec,
            parent=parent,
            carries="files",
            size_bytes=sum(layer.size_bytes for layer in layers),
            lease_s=lease_s,
            sessions=sessions,
        )
        # In a context of its own: what the end of a lease does is no part of the rollout that asked for it.
        loop = asyncio.get_running_loop()
        lease = loop.call_later(lease_s, self.drop, made.id, context=contextvars.Context())
        self._kept[made.id] = Kept(made, Stack(layers), image, Proof(), hold and hold.take(), lease)
        return made

    def find(self, snapshot: Snapshot) -> Kept | None:
        """To be used, and released; None if it is none of ours, or not any more."""
        kept = self._kept.get(snapshot.id)
        return None if kept is None else kept.taken()

    def all(self) -> tuple[Snapshot, ...]:
        """Those that can be used, the oldest first."""
        return tuple(kept.snapshot for kept in self._kept.values())

    def replace(self, lowest: tuple[Layer, ...], one: Layer) -> None:
        for kept in self._kept.values():
            kept.stack.replace(lowest, one)

    def drop(self, id: str) -> None:
        """Twice is fine. Sandboxes made of it live on."""
        kept = self._kept.pop(id, None)
        if kept is not None:
            if kept.lease is not None:
                kept.lease.cancel()
            kept.release()

    def forget(self) -> None:
        """Their launcher is dead, and so are their layers."""
        for snapshot in self.all():
            self.drop(snapshot.id)
