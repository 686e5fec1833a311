"""Which image a name means: what a registry's tag meant when it was pulled."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from excise.storage.home import cache_dir


class Tag(msgspec.Struct, frozen=True):
    """A name, whole, and the key of its image."""

    name: str
    key: str


def find(name: str) -> Tag | None:
    """What `name` means here."""
    try:
        return msgspec.json.decode(_place(name).read_bytes(), type=Tag)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def found() -> Iterator[Tag]:
    """Every name there is."""
    for path in sorted(_directory().iterdir()):
        if not path.name.startswith("."):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Tag)
            except (FileNotFoundError, msgspec.DecodeError):
                continue


def write(tag: Tag) -> None:
    """Let `tag.name` mean this image from now on, whole at any moment."""
    place = _place(tag.name)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(tag))
        file.flush()
        os.fsync(file.fileno())
    beside.rename(place)


def remove(*names: str) -> None:
    """Let these names mean nothing."""
    for name in names:
        _place(name).unlink(missing_ok=True)


def _place(name: str) -> Path:
    return _directory() / hashlib.sha256(name.encode()).hexdigest()


def _directory() -> Path:
    path = cache_dir() / "tags"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
