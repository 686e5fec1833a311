"""Who may come in, and how much each may have. A key is stored as its hash; it is shown once, when it is made."""

import hashlib
import hmac
import os
import re
import secrets
import tempfile
from pathlib import Path

import msgspec

from excise.errors import SpecError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PREFIX = "xk_"
OWN = "local"
"""The name of the one key that a server makes for itself when it is given none."""


def is_name(text: str) -> bool:
    """Whether a key can be called so."""
    return _NAME.fullmatch(text) is not None


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client as the server knows it."""

    name: str
    sha256: str
    sandboxes: int = 64
    """At once."""
    snapshots: int = 64
    rate: float = 0.0
    """Calls a second, after a burst of as many as come in ten; 0: no limit."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise SpecError(f"{self.name!r} cannot be a key's name: small letters, digits, '.', '_' and '-', at most 63")
        if self.sandboxes < 1 or self.snapshots < 0 or self.rate < 0:
            raise SpecError(f"the key {self.name} may have one sandbox at least, and no cap below zero")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key] = []


def fresh() -> str:
    """A new key: 256 bits nobody can guess, so that its plain hash is as good as a slow one."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """All that are let in."""

    def __init__(self, keys: list[Key]) -> None:
        self._by_digest = {key.sha256: key for key in keys}
        self.by_name = {key.name: key for key in keys}
        if len(self.by_name) != len(keys):
            raise SpecError("two keys have one name: whose sandboxes are whose is told by it")

    def find(self, given: str | None) -> Key | None:
        """The key's record. Its hash is looked up, so that how long it takes says nothing about the key."""
        if not given:
            return None
        found = self._by_digest.get(digest(given))
        return found if found is not None and hmac.compare_digest(found.sha256, digest(given)) else None


def read(path: Path) -> list[Key]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SpecError(f"there is no {path}: make the first key with `excise serve key add NAME --keys {path}`") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=_File).keys
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is no file of keys: {error}") from None


def add(path: Path, key: Key) -> None:
    """Write it beside those that are there. The file is replaced: a server that reads it meanwhile sees all or nothing."""
    there = read(path) if path.exists() else []
    if any(one.name == key.name for one in there):
        raise SpecError(f"{path} has a key {key.name} already: remove it first, or choose another name")
    _write(path, [*there, key])


def remove(path: Path, name: str) -> None:
    there = read(path)
    if all(one.name != name for one in there):
        raise SpecError(f"{path} has no key {name!r}; there are: {', '.join(one.name for one in there) or 'none'}")
    _write(path, [one for one in there if one.name != name])


def _write(path: Path, keys: list[Key]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_File(keys)), indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data + b"\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
