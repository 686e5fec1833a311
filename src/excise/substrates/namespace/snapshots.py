"""The snapshots of one open substrate: what each is made of, until it is discarded, its lease ends, or the substrate closes."""

import asyncio
import contextvars
import uuid
from typing import NamedTuple

from excise.errors import SpecError
from excise.spec import Spec
from excise.storage.image import Image
from excise.substrate import SessionState, Snapshot
from excise.substrates.namespace.layers import Layer, Stack
from excise.substrates.namespace.proof import Proof


class Kept(NamedTuple):
    """A snapshot as it can be used here."""

    snapshot: Snapshot
    stack: Stack
    image: Image
    lease: asyncio.TimerHandle
    proof: Proof


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
        self._kept[made.id] = Kept(made, Stack(layers), image, lease, Proof())
        return made

    def find(self, snapshot: Snapshot) -> Kept:
        """Raises SpecError if it is none of ours, or not any more."""
        kept = self._kept.get(snapshot.id)
        if kept is None:
            raise SpecError(
                f"{self._address} has no snapshot {snapshot.id}: it was discarded, its lease ended, or the client that took it"
                " is closed; take another one, with the substrate left open for as long as it is needed"
            )
        return kept

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
            kept.lease.cancel()
            kept.stack.release()

    def forget(self) -> None:
        """Their launcher is dead, and so are their layers."""
        for snapshot in self.all():
            self.drop(snapshot.id)
