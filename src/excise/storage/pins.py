"""Pins: what is in use and must not be collected. A pin is a file that its owner holds locked; it ends with its owner."""

import fcntl
import os
import time
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec


class _Record(msgspec.Struct):
    names: tuple[str, ...]
    until_s: float | None = None
    """Seconds since 1970: kept so long even when its owner has ended."""


class Pin:
    """A hold on some names of a store. Released by `close`, or when this process ends, in whatever way."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Let go; twice is fine."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "Pin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pins:
    """The pins of one store: files in one directory, and a lock between who pins and who collects."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def pin(self, names: Iterable[str], *, for_s: float | None = None) -> Pin:
        """Hold `names` until the pin is closed; with `for_s` at least so long, even if this process ends before."""
        until_s = None if for_s is None else time.time() + for_s
        path = self._directory / uuid.uuid4().hex
        with self._agreed(fcntl.LOCK_SH):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, msgspec.json.encode(_Record(tuple(names), until_s)))
        return Pin(path, descriptor)

    @contextmanager
    def collecting(self) -> Generator[frozenset[str]]:
        """All that is pinned; nothing more is while this lasts. Keep it short, and move away what is to be removed."""
        with self._agreed(fcntl.LOCK_EX):
            yield frozenset(name for path in self._directory.iterdir() if path.name != ".lock" for name in _held(path))

    @contextmanager
    def _agreed(self, how: int) -> Generator[None]:
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)


def _held(path: Path) -> tuple[str, ...]:
    """What the pin at `path` holds; one whose owner has ended and whose time is over is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    try:
        try:
            record = msgspec.json.decode(os.pread(descriptor, 1 << 24, 0), type=_Record)
        except msgspec.DecodeError:  # its owner ended while it wrote
            record = _Record(())
        if record.until_s is not None and record.until_s > time.time():
            return record.names
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return ()
        return record.names
    finally:
        os.close(descriptor)
