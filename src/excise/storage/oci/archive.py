"""Images in files: what `docker save` writes, and OCI layouts, as a tar or a directory."""

import posixpath
import tarfile
import zlib
from pathlib import Path
from typing import Protocol

import msgspec

from excise.errors import SpecError
from excise.storage.oci import documents
from excise.storage.oci.streams import FileSource

_MOST_JSON_BYTES = 8 << 20
_MARKS = ("manifest.json", "oci-layout")


class _Saved(msgspec.Struct):
    """An image in the manifest.json of `docker save`."""

    Config: str
    Layers: tuple[str, ...]


class _Files(Protocol):
    """Named bytes of an archive."""

    def source(self, name: str) -> FileSource | None: ...


class _TarFiles:
    """A tar's members, by where their bytes lie in it; links among them are followed by name, inside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                if member.isreg():
                    self._places[name] = (member.offset_data, member.size)
                elif member.issym():  # `docker save` of before version 25 says so that a layer is there already
                    self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                elif member.islnk():
                    self._links[name] = posixpath.normpath(member.linkname)

    def source(self, name: str) -> FileSource | None:
        found = posixpath.normpath(name)
        place = self._places.get(self._links.get(found, found))
        return None if place is None else FileSource(str(self._path), *place)


class _DirectoryFiles:
    """A directory's files. Its owner is trusted as far as the user is: it is on this machine, and named by them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def source(self, name: str) -> FileSource | None:
        place = self._path / name
        inside = not name.startswith("/") and ".." not in name.split("/")
        return FileSource(str(place), 0, place.stat().st_size) if inside and place.is_file() else None


def is_archive(path: Path) -> bool:
    """Whether `path` holds an image, not a root file system. A tar is read through by its headers for that."""
    if path.is_dir():
        return any((path / mark).is_file() for mark in _MARKS)
    try:
        with tarfile.open(path, "r:*") as archive:
            return any(member.isreg() and posixpath.normpath(member.name) in _MARKS for member in archive)
    except (tarfile.TarError, EOFError, zlib.error, OSError):
        return False  # who unpacks it says what is wrong with it


def is_compressed(path: Path) -> bool:
    """Whether a tar must be written out before single members of it can be read."""
    if path.is_dir():
        return False
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0"))


def plan(path: Path, name: str) -> documents.ImagePlan:
    """The image that the archive at `path`, not compressed as a whole, holds. Blocking."""
    try:
        files = _DirectoryFiles(path) if path.is_dir() else _TarFiles(path)
    except (tarfile.TarError, EOFError) as error:
        raise SpecError(f"{name} is damaged or cut short: {error}") from None
    if files.source("manifest.json") is not None:
        return _saved(files, name)
    return _layout(files, name)


def _saved(files: _Files, name: str) -> documents.ImagePlan:
    try:
        images = msgspec.json.decode(_read(files, "manifest.json", name), type=list[_Saved])
    except msgspec.DecodeError as error:
        raise SpecError(f"{name} has a manifest.json that says something else than `docker save` does: {error}") from None
    if len(images) != 1:
        raise SpecError(f"{name} holds {len(images)} images: save one at a time")
    sources = [(_source(files, layer, name), None, 0) for layer in images[0].Layers]
    return documents.plan(name, _read(files, images[0].Config, name), sources)


def _layout(files: _Files, name: str) -> documents.ImagePlan:
    def blob(one: documents.Descriptor) -> bytes:
        return _read(files, _blob(one.digest), name)

    manifest = documents.single(_read(files, "index.json", name), name, blob)
    assert manifest.config is not None
    sources = [(_source(files, _blob(one.digest), name), one.digest, one.size) for one in manifest.layers]
    return documents.plan(name, blob(manifest.config), sources)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _source(files: _Files, member: str, name: str) -> FileSource:
    found = files.source(member)
    if found is None:
        raise SpecError(f"{name} has no {member[:100]}: it is damaged or cut short")
    return found


def _read(files: _Files, member: str, name: str) -> bytes:
    source = _source(files, member, name)
    if (source.size or 0) > _MOST_JSON_BYTES:
        raise SpecError(f"{name} has a {member[:100]} of {source.size} bytes: it is no image")
    return b"".join(source.chunks())
