"""What workloads that are a user's own file share: a name that says which contents were measured."""

import hashlib
from pathlib import Path
from urllib.parse import urlencode

from excise.errors import SpecError

_DIGITS = 8


def name(path: Path, **options: str | None) -> str:
    """As the registry reads it back: the path, the digest of its contents, and what else was asked of it."""
    given = {key: value for key, value in options.items() if value is not None}
    return f"{path}?{urlencode({'sha256': digest(path), **given})}"


def digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    except OSError as error:
        raise SpecError(f"the workload {path} cannot be read: {error.strerror}") from None


def check(path: Path, sha256: str | None) -> None:
    """Refuse contents other than those that a name was made for."""
    found = digest(path)
    if sha256 is not None and not found.startswith(sha256[:_DIGITS]):
        raise SpecError(f"{path} was changed since: its sha256 begins with {found}, not {sha256}; leave sha256= out to use it")
