"""Where Excise keeps things: a cache that outlives it, and the directories of live sandboxes, which do not.

Both are ours alone. What lies in them becomes root file systems, with other owners and set-user-ID programs in them, so
neither another user's directory nor one that others may enter will do.
"""

import os
import stat
import tempfile
from pathlib import Path

from excise.errors import SpecError


def cache_dir() -> Path:
    """The cache: EXCISE_HOME, else excise in XDG_CACHE_HOME, else ~/.cache/excise. Made if it is not there."""
    home = _named("EXCISE_HOME")
    if home is None:
        caches = _named("XDG_CACHE_HOME") or _user_home() / ".cache"
        home = caches / "excise"
    return _own(home)


def state_dir() -> Path:
    """Live sandboxes' directories: $EXCISE_HOME/run, else excise in XDG_RUNTIME_DIR, else excise-UID in the temporary one."""
    if (home := _named("EXCISE_HOME")) is not None:
        return _own(home / "run")
    runtime = _named("XDG_RUNTIME_DIR")
    # After sudo or su the variable still names the other user's directory, who could swap what we put there.
    if runtime is not None and runtime.is_dir() and runtime.stat().st_uid == os.geteuid():
        return _own(runtime / "excise")
    return _own(Path(tempfile.gettempdir()) / f"excise-{os.geteuid()}")


def _named(variable: str) -> Path | None:
    """The absolute path an environment variable holds; XDG says to ignore a relative one, and for ours we make it absolute."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute():
        return Path.cwd() / path if variable == "EXCISE_HOME" else None
    return path


def _user_home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise SpecError("this user has no home directory: set EXCISE_HOME to a directory you own") from None


def _own(path: Path) -> Path:
    """Make `path` a directory that only we may enter, or say why it cannot be one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SpecError(f"{path} cannot be made ({error.strerror}): set EXCISE_HOME to a directory you own") from None
    if stat.S_ISLNK(found.st_mode) and path.parent.stat().st_mode & stat.S_ISVTX:
        # In /tmp anyone can plant a link; elsewhere a link is its owner's way to put the cache on another disk.
        raise SpecError(f"{path} is a link someone may have planted: remove it, or set EXCISE_HOME")
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise SpecError(f"{path} belongs to uid {found.st_uid}, not to you: set EXCISE_HOME to a directory you own")
    if found.st_mode & 0o077:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise SpecError(f"{path} cannot be closed to others ({error.strerror}): set EXCISE_HOME to another") from None
    return path
