"""The states of one sandbox: taken, gone back to, compared, proved."""

from pathlib import Path
from typing import NamedTuple

from excise.adoption import same_making
from excise.errors import SpecError
from excise.guest.link import Link
from excise.spec import Spec
from excise.storage.background import to_end
from excise.storage.image import Image
from excise.storage.trees.diff import Side
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import Change, SessionState, Snapshot
from excise.substrates.namespace import changes, proof
from excise.substrates.namespace.depth import Depth
from excise.substrates.namespace.layers import Hold, Layer, Stack
from excise.substrates.namespace.place import close_all
from excise.substrates.namespace.proof import Proof
from excise.substrates.namespace.roots import Roots, open_directory
from excise.substrates.namespace.saved import Saved
from excise.substrates.namespace.snapshots import Kept, Snapshots


class Start(NamedTuple):
    """What a sandbox's present life began with."""

    spec: Spec
    """As it was asked for."""
    image: Image
    snapshot: Snapshot | None = None
    built: bool = False
    """Whether the spec's steps are in the image's layers."""
    proof: Proof | None = None
    """Of the snapshot."""
    hold: Hold | None = None
    """On the saved layers of the snapshot, if it has any."""
    is_step: bool = False
    """It is made for what one step writes, and for nothing else."""


class Shared(NamedTuple):
    """What the sandboxes of a substrate share."""

    snapshots: Snapshots
    saved: Saved
    storekeeper: Storekeeper
    prove: bool


class States:
    """Where a sandbox is, and where it can go."""

    def __init__(self, link: Link, start: Start, roots: Roots, shared: Shared) -> None:
        self.start = start
        self.roots = roots
        self._link = link
        self._snapshots, self._saved, self._storekeeper, self._prove = shared
        self._depth = Depth(roots, shared.snapshots, shared.storekeeper)
        self._began = Stack(roots.stack.layers)
        self._hold = start.hold and start.hold.take()

    # ---- layers

    async def _present(self) -> Stack:
        """All layers of the present state, held for the caller."""
        # To its end: an upper that was sealed is under the sandbox, whoever gave up waiting for it.
        if await to_end(self._seal()):
            await self._depth.bound()
            return Stack(self.roots.stack.layers)
        copied = await self._copy()
        try:
            return Stack((copied, *self.roots.stack.layers))
        finally:
            copied.release()  # the stack has it

    async def _seal(self) -> bool:
        try:
            return await self.roots.seal()
        except Exception as error:
            self._link.fail(str(error))
            raise

    async def _copy(self) -> Layer:
        """Whatever lives stands still while what is written is copied."""
        try:
            await self._link.freeze()
            return await self.roots.copy(self._storekeeper)
        finally:
            self._link.thaw()

    # ---- snapshot and reset

    async def take(self, sessions: tuple[SessionState, ...], lease_s: float, keep_s: float | None) -> Snapshot:
        present = await self._present()
        try:
            if self._prove:
                await proof.record(self._storekeeper, self.roots, present.layers)
            parent = None if self.start.snapshot is None else self.start.snapshot.id
            if keep_s is not None:
                return await self._save(present, parent, keep_s, sessions)
            return self._snapshots.keep(
                present.layers,
                self.start.image,
                self.start.spec,
                parent=parent,
                lease_s=lease_s,
                sessions=sessions,
                hold=self._hold,
            )
        finally:
            present.release()

    async def _save(self, present: Stack, parent: str | None, keep_s: float, sessions: tuple[SessionState, ...]) -> Snapshot:
        opened = await self.roots.open_layers(present.layers)
        try:
            return await self._saved.save(
                opened, self.start.image, self.start.spec, parent=parent, keep_s=keep_s, sessions=sessions
            )
        finally:
            close_all(opened)

    async def find(self, snapshot: Snapshot) -> Kept:
        """To be released. Raises SpecError if the sandbox cannot go there."""
        kept = self._snapshots.find(snapshot) or await self._saved.find(snapshot)
        if not same_making(kept.snapshot.spec, self.start.spec):
            kept.release()
            raise SpecError("a sandbox goes back to states of its own spec, terms aside: make another one of this snapshot")
        return kept

    def began(self, kept: Kept) -> None:
        """A life has begun that starts with this snapshot."""
        old, self._hold = self._hold, kept.hold and kept.hold.take()
        if old is not None:
            old.release()
        self.start = self.start._replace(snapshot=kept.snapshot, image=kept.image, proof=kept.proof)
        self._begin(Stack(self.roots.stack.layers))

    async def begin_here(self) -> None:
        """The spec's steps are done: what they wrote is the start, and no change."""
        self._begin(await self._present())

    def _begin(self, stack: Stack) -> None:
        self._began.release()
        self._began = stack

    async def prove(self, *, asked: bool) -> None:
        """Of a life that begins with a snapshot, before anything runs in it: that it is the state it should be."""
        if (asked or self._prove) and self.start.snapshot is not None:
            assert self.start.proof is not None
            await self.start.proof.check(self._storekeeper, self.roots, self.start.image.over)

    # ---- difference

    async def diff(self, since: Snapshot | None, *, contents: bool, mounted: tuple[str, ...]) -> tuple[Change, ...]:
        """What is otherwise than in `since`, or than when the life began."""
        if since is None:
            return await self._differs(self._began.layers, self.start.image, contents=contents, mounted=mounted)
        kept = self._snapshots.find(since) or await self._saved.find(since)
        try:
            return await self._differs(kept.stack.layers, kept.image, contents=contents, mounted=mounted)
        finally:
            kept.release()

    async def _differs(
        self, layers: tuple[Layer, ...], image: Image, *, contents: bool, mounted: tuple[str, ...]
    ) -> tuple[Change, ...]:
        own = (*self.roots.stack.layers, *self.start.image.over)
        theirs = (*layers, *image.over)
        same = _common(own, theirs)
        held = Stack((*self.roots.stack.layers, *layers))
        opened: list[int] = []
        try:
            opened.append(upper := await self.roots.open_upper())
            ours = [upper, *await self._opened(own[: len(own) - same], opened)]
            others = await self._opened(theirs[: len(theirs) - same], opened)
            below = await self._opened((*own[len(own) - same :], image.root), opened)
            found = await self._storekeeper.diff(ours, [*others, *below], contents=("before",) if contents else ())
            held_then: tuple[Side, ...] = ("after",) if contents else ()
            back = await self._storekeeper.diff(others, [*ours, *below], contents=held_then) if others else []
        finally:
            close_all(opened)
            held.release()
        told = changes.told(found, back, mounted=mounted, made=self.roots.directories)
        return tuple(told if contents else changes.without_contents(told))

    async def _opened(self, layers: tuple[Layer | Path, ...], opened: list[int]) -> list[int]:
        some: list[int] = []
        for layer in layers:
            some.append(open_directory(layer) if isinstance(layer, Path) else await self.roots.open_layer(layer))
            opened.append(some[-1])
        return some

    async def leave(self) -> None:
        """After the sandbox was removed: its layers are nobody's of it any more."""
        await self._depth.close()
        self._began.release()
        self.roots.stack.release()
        if self._hold is not None:
            self._hold.release()
            self._hold = None


def _common(one: tuple[Layer | Path, ...], other: tuple[Layer | Path, ...]) -> int:
    """How many layers are the same, from the lowest on."""
    same = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        same += 1
    return same
