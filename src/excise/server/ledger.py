"""What the server holds, written down as it changes: what a server that was killed leaves to the next one."""

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from excise.errors import SpecError

_log = logging.getLogger("excise.server")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sandbox, or the end of one (`gone`). Times are of the wall clock: they outlive the process that wrote them."""

    id: str
    key: str = ""
    labels: Mapping[str, str] = {}
    until: float = 0.0
    gone: bool = False
    at: str = ""
    """What its substrate calls it, if that is not `id`."""


class Ledger:
    """A line for each change; rewritten when most of it is history.

    A disk that is full, or gone, is said once and is no reason to end a rollout: what is held is written down as soon as it can
    be again, all of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[str, Entry] = {}
        self._lines = 0
        self._file: int | None = None
        self._lock: int | None = None
        self._is_behind = False
        self.was_left = False
        """A server before this one did not close it."""

    def open(self) -> tuple[Entry, ...]:
        """Begin a new one; what the last one held, if it was not closed in order."""
        try:
            return self._open()
        except OSError as error:
            raise SpecError(f"{self._path} cannot be written ({error.strerror}): give a --state directory that can") from None

    def _open(self) -> tuple[Entry, ...]:
        left: dict[str, Entry] = {}
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._path.parent.stat().st_uid not in (0, os.geteuid()):
            raise SpecError(f"{self._path.parent} is another user's, who could write what he likes: give another --state")
        self._lock = self._locked()
        self.was_left = self._path.exists()
        if self.was_left:
            for line in self._path.read_bytes().splitlines():
                try:
                    entry = msgspec.json.decode(line, type=Entry)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # the line that was being written when it died
                left.pop(entry.id, None)
                if not entry.gone:
                    left[entry.id] = entry
        self._held = left  # until each is looked after: who is killed meanwhile leaves the rest to the next one
        self._begin()
        return tuple(left.values())

    def _locked(self) -> int:
        """Ours until we end. Who closes in order takes the file away: then the one we have locked is nobody's any more."""
        path = self._path.with_suffix(".lock")
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(lock, path):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise SpecError(
                    f"a server that runs writes {self._path}: give this one another --state, or another port"
                ) from None
            os.close(lock)

    def _begin(self) -> None:
        new = self._path.with_suffix(".new")
        data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in self._held.values())
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, data)
            new.replace(self._path)
        except OSError:
            os.close(descriptor)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file, self._lines = descriptor, len(self._held)

    def note(self, entry: Entry) -> None:
        if self._file is None:
            return
        if entry.gone:
            self._held.pop(entry.id, None)
        else:
            self._held[entry.id] = entry
        self._lines += 1
        try:
            if self._is_behind or self._lines > 2 * len(self._held) + 1024:
                self._begin()
            else:
                _write(self._file, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            if not self._is_behind:
                _log.error("%s cannot be written (%s): a server after this one would not know what is held", self._path, error)
            self._is_behind = True
        else:
            if self._is_behind:
                _log.info("%s is written again", self._path)
            self._is_behind = False

    @property
    def is_behind(self) -> bool:
        """What is held could not be written down."""
        return self._is_behind

    def close(self) -> None:
        """Everything was closed in order: there is nothing for the next one to look after."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not self._held:
                self._path.unlink(missing_ok=True)
        if self._lock is not None:
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(descriptor: int, data: bytes) -> None:
    """All of it: a disk that is nearly full takes less without a word."""
    while data:
        data = data[os.write(descriptor, data) :]
