"""Saved machines as snapshots: kept while their maker lives or as long as was asked, listed, discarded, collected.

vmm/snapshots/ID/     memory, device, place: the machine; record.json: what it is; owner: locked while its maker lives
"""

import fcntl
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from excise.errors import SpecError
from excise.spec import Spec
from excise.storage.background import in_thread
from excise.substrate import SessionState, Snapshot
from excise.substrates.microvm.plan import Plan
from excise.vmm.kept import place, remove, sentence

_RECORD, _OWNER = "record.json", "owner"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the disk besides the machine. Never a secret: who starts from it names the spec, secrets included, again."""

    id: str
    image: str
    plan: Plan
    env: Mapping[str, str]
    """The image's."""
    workdir: str
    user: str | None
    carries: Literal["files", "processes"]
    names: tuple[str, ...] = ()
    """Of the sessions that live in it."""
    parent: str | None = None
    sessions: tuple[SessionState, ...] = ()
    size_bytes: int = 0
    until_s: float | None = None
    """Seconds since 1970: kept so long, whoever lives. None: as long as its maker."""


class Kept(msgspec.Struct):
    """A snapshot that can be used here."""

    snapshot: Snapshot
    record: Record
    directory: Path


class Snapshots:
    """Those of one substrate, and those that others keep."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._own: dict[str, Kept] = {}
        self._locks: dict[str, int] = {}
        self._ends_s: dict[str, float] = {}

    def begin(self) -> tuple[str, Path]:
        """An id, and where its machine is saved to."""
        made = uuid.uuid4().hex
        return made, _root() / f".making-{made}"

    def keep(self, record: Record, making: Path, spec: Spec, lease_s: float, keep_s: float | None) -> Snapshot:
        """The machine in `making` is a snapshot from now on."""
        directory = _root() / record.id
        until_s = None if keep_s is None else time.time() + keep_s
        record = msgspec.structs.replace(record, until_s=until_s)
        snapshot = _snapshot(record, self._address, spec, lease_s if keep_s is None else keep_s)
        try:
            lock = os.open(making / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            (making / _RECORD).write_bytes(msgspec.json.encode(record))
            making.rename(directory)
        except OSError as error:
            remove(making)
            raise sentence(error) from None
        self._own[record.id], self._locks[record.id] = Kept(snapshot, record, directory), lock
        self._ends_s[record.id] = time.monotonic() + (lease_s if keep_s is None else keep_s)
        return snapshot

    def find(self, snapshot: Snapshot) -> Kept:
        """To be used; a SpecError if there is none, or not any more."""
        self._expire()
        if (kept := self._own.get(snapshot.id)) is not None:
            return kept
        record = _read(_root() / snapshot.id) if snapshot.id.isalnum() else None
        if record is None or record.until_s is None or record.until_s <= time.time():
            raise SpecError(f"there is no snapshot {snapshot.id} here: it was discarded, or its lease ended; take another one")
        return Kept(snapshot, record, _root() / record.id)

    def all(self) -> tuple[Snapshot, ...]:
        self._expire()
        own = {one.snapshot.id: one.snapshot for one in self._own.values()}
        for directory in _directories():
            record = _read(directory)
            if record is not None and record.id not in own and (record.until_s or 0) > time.time():
                left_s = (record.until_s or 0) - time.time()
                own[record.id] = _snapshot(record, self._address, Spec(image=record.image), left_s)
        return tuple(own.values())

    def _expire(self) -> None:
        now_s = time.monotonic()
        for name in [name for name, end_s in self._ends_s.items() if end_s <= now_s]:
            self.discard(name)

    def discard(self, id: str) -> None:
        """Machines that began as it live on: they hold the file. Twice is fine."""
        kept = self._own.pop(id, None)
        self._ends_s.pop(id, None)
        lock = self._locks.pop(id, None)
        if lock is not None:
            os.close(lock)
        directory = kept.directory if kept is not None else _root() / id
        if id.isalnum():
            remove(directory)

    async def collect(self) -> tuple[str, ...]:
        """Remove those whose maker is gone and whose time is over; and what one who was killed had half saved."""
        return await in_thread(lambda _: tuple(f"snapshot {name}" for name in _collect(self._own)))

    def close(self) -> None:
        """What was not to be kept longer ends here."""
        for name, kept in list(self._own.items()):
            if kept.record.until_s is None:
                self.discard(name)
            elif (lock := self._locks.pop(name, None)) is not None:
                os.close(lock)
        self._own.clear()
        self._ends_s.clear()


def _snapshot(record: Record, address: str, spec: Spec, lease_s: float) -> Snapshot:
    return Snapshot(
        id=record.id,
        address=address,
        spec=spec,
        parent=record.parent,
        carries=record.carries,
        size_bytes=record.size_bytes,
        lease_s=lease_s,
        sessions=record.sessions,
    )


def _root() -> Path:
    root = place("snapshots")
    root.mkdir(mode=0o700, exist_ok=True)
    return root


def _directories() -> list[Path]:
    return [path for path in _root().iterdir() if not path.name.startswith(".")]


def _read(directory: Path) -> Record | None:
    try:
        return msgspec.json.decode((directory / _RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def _collect(own: Iterable[str]) -> list[str]:
    gone: list[str] = []
    for directory in _directories():
        record = _read(directory)
        kept = record is not None and record.until_s is not None and record.until_s > time.time()
        if directory.name not in own and not kept and not _is_owned(directory):
            remove(directory)
            gone.append(directory.name)
    for making in _root().glob(".making-*"):
        # Nobody saves a machine for so long.
        with suppress(OSError):
            if time.time() - making.stat().st_mtime > _LONGEST_SAVE_S:
                remove(making)
    return gone


_LONGEST_SAVE_S = 3600.0


def _is_owned(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
