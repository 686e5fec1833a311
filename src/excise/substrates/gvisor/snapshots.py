"""Saved states: what a sandbox wrote over its image, as the tar that runsc makes of it and begins with again.

gvisor-snapshots/ID/upper.tar record.json     in the cache, since one that is kept outlives whoever took it
"""

import asyncio
import os
import shutil
import time
import uuid
from pathlib import Path

import msgspec

from excise.errors import CreateError, SpecError
from excise.handles import finish
from excise.host.sandboxes import owner_of
from excise.spec import Spec
from excise.storage.home import cache_dir
from excise.substrate import SessionState, Snapshot
from excise.substrates.gvisor.container import Container

_DIRECTORY = "gvisor-snapshots"
_RECORD = "record.json"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a snapshot without its spec, which may hold what must not be kept."""

    address: str
    image: str
    key: str
    """The image's in the cache: the same name may mean another one later."""
    owner: str | None
    """Whose process it ends with; None: it is kept."""
    until_s: float
    parent: str | None = None
    sessions: tuple[SessionState, ...] = ()


class Snapshots:
    """Those of one address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._owner = owner_of(os.getpid())

    async def take(
        self,
        container: Container,
        *,
        spec: Spec,
        parent: str | None,
        lease_s: float,
        keep_s: float | None,
        sessions: tuple[SessionState, ...] = (),
    ) -> Snapshot:
        """The container's files as they are. Given up half-way, nothing of it is left."""
        made = Snapshot(
            id=uuid.uuid4().hex,
            address=self._address,
            spec=spec,
            parent=parent,
            lease_s=lease_s if keep_s is None else keep_s,
            sessions=sessions,
        )
        record = _Record(
            address=self._address,
            image=spec.image,
            key=container.start.image.key,
            owner=self._owner if keep_s is None else None,
            until_s=time.time() + (made.lease_s or 0.0),
            parent=parent,
            sessions=sessions,
        )
        place = _places() / made.id
        place.mkdir(mode=0o700, parents=True)
        try:
            await container.tar(place / "upper.tar")
            (place / _RECORD).write_bytes(msgspec.json.encode(record))
        except BaseException:
            await finish(asyncio.to_thread(shutil.rmtree, place, ignore_errors=True))
            raise
        return msgspec.structs.replace(made, size_bytes=(place / "upper.tar").stat().st_size)

    def upper(self, snapshot: Snapshot, image_key: str) -> Path:
        """What a sandbox of it begins with, over the image of this key."""
        place = _places() / snapshot.id
        record = _read(place) if _is_id(snapshot.id) else None
        if record is None or not (place / "upper.tar").exists():
            raise CreateError(f"there is no snapshot {snapshot.id} here: it was discarded, or its lease ran out; take another")
        if record.key != image_key:
            raise SpecError(f"image {record.image} is another one than when snapshot {snapshot.id} was taken; take another")
        return place / "upper.tar"

    async def list(self) -> tuple[Snapshot, ...]:
        found: list[Snapshot] = []
        for place in sorted(_places().iterdir()):
            record = _read(place)
            if record is None or record.address != self._address or _is_over(record):
                continue
            found.append(
                Snapshot(
                    id=place.name,
                    address=record.address,
                    spec=Spec(image=record.image),
                    parent=record.parent,
                    size_bytes=(place / "upper.tar").stat().st_size,
                    lease_s=record.until_s - time.time(),
                    sessions=record.sessions,
                )
            )
        return tuple(found)

    async def discard(self, snapshot: Snapshot) -> None:
        """Twice is fine. A sandbox of it has read it, and lives on."""
        if _is_id(snapshot.id):
            await asyncio.to_thread(shutil.rmtree, _places() / snapshot.id, ignore_errors=True)

    async def collect(self) -> tuple[str, ...]:
        """Remove those whose lease or owner is gone, and what was never finished, and say which."""
        over = [place for place in _places().iterdir() if (record := _read(place)) is None or _is_over(record)]
        # One that is being taken has no record yet.
        over = [place for place in over if (place / _RECORD).exists() or time.time() - place.stat().st_mtime > _UNFINISHED_S]
        for place in over:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return tuple(place.name for place in over)

    async def close(self) -> None:
        """Those that nobody asked to keep end with us."""
        for place in tuple(_places().iterdir()):
            record = _read(place)
            if record is not None and record.address == self._address and record.owner == self._owner:
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


_UNFINISHED_S = 600.0


def _places() -> Path:
    place = cache_dir() / _DIRECTORY
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _is_id(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")


def _read(place: Path) -> _Record | None:
    try:
        return msgspec.json.decode((place / _RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _is_over(record: _Record) -> bool:
    if record.until_s < time.time():
        return True
    return record.owner is not None and owner_of(int(record.owner.partition("-")[0])) != record.owner
