"""Snapshots as images of the daemon: committed, made containers of, discarded, collected."""

import contextvars
import time
import uuid
from asyncio import CancelledError, Task, gather, get_running_loop
from collections.abc import Coroutine
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.handles import finish
from excise.spec import Spec
from excise.storage.background import to_end
from excise.substrate import SessionState, Snapshot
from excise.substrates.docker import container
from excise.substrates.docker.engine import GOING, Engine
from excise.substrates.docker.images import SNAPSHOTS, Images, missing

_GONE, _IN_USE = 404, 409

MAKING_S = 10.0
"""For the daemon to give an image that it has made its name."""


def reference(snapshot: Snapshot) -> str:
    return f"{SNAPSHOTS}:{snapshot.id}"


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot's image says of itself. Who may talk to the daemon can read it: no variable of a spec is in it."""

    address: str
    image: str
    parent: str | None = None
    sessions: tuple[SessionState, ...] = ()


class Snapshots:
    """The snapshots one client made, and the removal of what is no longer needed."""

    def __init__(self, engine: Engine, images: Images, address: str) -> None:
        self.engine = engine
        self.images = images
        self._address = address
        self._discarded: dict[str, str] = {}
        """Those whose image, by its id, was still needed by a sandbox or a later snapshot: it goes with the last of them."""
        self._background: set[Task[None]] = set()

    async def take(
        self,
        container_id: str,
        *,
        spec: Spec,
        user: str | None,
        parent: str | None,
        lease_s: float,
        sessions: tuple[SessionState, ...] = (),
    ) -> Snapshot:
        """The container's files as they are. `user`: of the image that comes of it; None: as the container's."""
        made = Snapshot(
            id=uuid.uuid4().hex,
            address=self._address,
            spec=spec,
            parent=parent,
            carries="files",
            lease_s=lease_s,
            sessions=sessions,
        )
        terms = _Terms(address=self._address, image=spec.image, parent=parent, sessions=sessions)
        labels = {
            container.OWNED: "1",
            container.SNAPSHOT: made.id,
            container.SNAPSHOT_TERMS: msgspec.json.encode(terms).decode(),
            container.LEASE: f"{time.time() + lease_s:.3f}",
        }
        config = {"Labels": labels, **({} if user is None else {"User": user})}
        try:
            # To its end: an image whose answer we did not wait for would come into being after we had removed it.
            await to_end(self.engine.commit(container_id, SNAPSHOTS, made.id, config))
        except CancelledError:
            await finish(self.discard(made))
            raise
        return msgspec.structs.replace(made, size_bytes=await self._size_bytes(made))

    async def _size_bytes(self, snapshot: Snapshot) -> int:
        """What it adds to the image it came from."""
        history = await self.engine.get(f"images/{reference(snapshot)}/history")
        layers = msgspec.json.decode(history or b"[]", type=list[dict[str, Any]])
        return int(layers[0]["Size"]) if layers else 0

    async def prepared(self, snapshot: Snapshot) -> container.Prepared:
        """A snapshot's image, with what the image it came from needs beside it."""
        try:
            return msgspec.structs.replace(await self.images.prepare(snapshot.spec.image), reference=reference(snapshot))
        except SpecError:
            if await self._inspected(reference(snapshot)) is None:
                raise missing(reference(snapshot)) from None
            raise

    async def _inspected(self, image: str) -> dict[str, Any] | None:
        shown = await self.engine.get(f"images/{image}/json")
        return None if shown is None else msgspec.json.decode(shown)

    async def create(self, name: str, config: dict[str, Any]) -> str:
        """A container, not started yet; cancelled, none is left."""
        made: list[str] = []

        async def create() -> None:
            made.append(await self.images.create_container(name, config, config["Image"]))

        try:
            await to_end(create())
        except BaseException:
            for id in made:  # noqa: A001 - what a container's id is called
                await finish(self.engine.remove(id))
            raise
        return made[0]

    async def list(self) -> tuple[Snapshot, ...]:
        """Those of this address that are in the daemon and whose lease runs, whoever took them."""
        found: list[Snapshot] = []
        for image in await self.engine.images(container.SNAPSHOT):
            labels, left_s = image["Labels"], container.listed(image).lease_left_s
            if _is_over(image) or container.SNAPSHOT_TERMS not in labels:
                continue
            terms = msgspec.json.decode(labels[container.SNAPSHOT_TERMS], type=_Terms)
            if terms.address != self._address:
                continue
            one = Snapshot(
                id=labels[container.SNAPSHOT],
                address=terms.address,
                spec=Spec(image=terms.image),
                parent=terms.parent,
                lease_s=left_s,
                sessions=terms.sessions,
            )
            found.append(msgspec.structs.replace(one, size_bytes=await self._size_bytes(one)))
        return tuple(found)

    # ---- their end

    async def discard(self, snapshot: Snapshot) -> None:
        """Twice is fine. Under a sandbox of it the image loses its name only: nobody else can begin with it."""
        image = await self._inspected(reference(snapshot))
        if image is not None and not await self._delete(reference(snapshot), force=True):
            self._discarded[snapshot.id] = image["Id"]
        await self._sweep()

    async def _delete(self, image: str, *, force: bool) -> bool:
        """Whether nothing of it is left."""
        from aiodocker import DockerError  # noqa: PLC0415 - 0.2 s that `import excise` should not pay

        docker = await self.engine.docker()
        with self.engine.refusals():
            try:
                # Only this one: the daemon would go on with nameless images it came from, which may be the user's.
                done = await docker.images.delete(image, force=force, noprune=True)
            except DockerError as error:
                gone = error.status == _GONE or any(word in error.message for word in GOING)
                if not gone and error.status != _IN_USE:
                    raise
                return gone
        return any("Deleted" in entry for entry in done)

    async def _sweep(self) -> None:
        """Remove the images of discarded snapshots that nothing needs any more."""
        progress = True
        while progress:  # one may be what another was made of
            progress = False
            for id, image in tuple(self._discarded.items()):  # noqa: A001 - what a snapshot's id is called
                shown = await self._inspected(image)
                named = shown is not None and _names(shown)  # by the user, who wants to keep it
                if named or shown is None or await self._delete(image, force=False):
                    progress = self._discarded.pop(id, None) is not None or progress

    async def collect(self) -> tuple[str, ...]:
        """Remove the snapshots whose lease ran out and which no sandbox is made of, and say which."""
        found = await self.engine.images(container.SNAPSHOT)
        over = [image for image in found if _is_over(image) and not _is_being_made(image)]
        taken: list[str] = []
        progress = True
        while progress:  # one may be what another was made of
            # By id: of one that another was made of, a name would be taken away, and the nameless rest never be found again.
            left = [image for image in over if not await self._delete(image["Id"], force=False)]
            taken += [image["Labels"][container.SNAPSHOT] for image in over if image not in left]
            progress, over = len(left) < len(over), left
        return tuple(taken)

    def remove_later(self, container_id: str, start: Snapshot | None) -> Task[None]:
        """Remove a container that is no longer needed, beside whatever goes on: no rollout's trace has it."""
        return self._later(self.remove(container_id, start))

    def _later(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        task = get_running_loop().create_task(work, context=contextvars.Context())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def remove(self, container_id: str, start: Snapshot | None) -> None:
        """Remove a container, and the image it was made of if that was discarded meanwhile."""
        await self.engine.remove(container_id)
        if start is not None and start.id in self._discarded:
            await self._sweep()

    async def settled(self) -> None:
        """Return once nothing goes on in the background."""
        await gather(*self._background, return_exceptions=True)


def _is_over(image: dict[str, Any]) -> bool:
    """Whether it was discarded, or its lease ran out. One that the user gave a name of their own is the user's."""
    names = _names(image)
    return not names or (_is_expired(image) and names == [f"{SNAPSHOTS}:{image['Labels'][container.SNAPSHOT]}"])


def _is_being_made(image: dict[str, Any]) -> bool:
    """Whether it may be another client's that was committed a moment ago: the daemon gives it its name only then."""
    return not _names(image) and not _is_expired(image) and time.time() - image["Created"] < MAKING_S


def _is_expired(image: dict[str, Any]) -> bool:
    left_s = container.listed(image).lease_left_s
    return left_s is not None and left_s < 0


def _names(image: dict[str, Any]) -> list[str]:
    return [name for name in image.get("RepoTags") or () if name != "<none>:<none>"]
