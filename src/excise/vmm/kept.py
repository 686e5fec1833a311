"""What takes long to make is made once and kept: files and directories below `vmm` in the cache, by name."""

import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from excise.errors import SubstrateError
from excise.storage.background import in_thread, locked, to_end
from excise.storage.home import cache_dir


def place(name: str = "") -> Path:
    """Where what is called `name` is kept, or would be."""
    directory = cache_dir() / "vmm"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory / name


async def kept(name: str, fill: Callable[[Path], Awaitable[None]]) -> Path:
    """The file or directory called `name`. If there is none, `fill` makes it at another path, which then takes its place.

    Of several processes that want it at once one makes it. Whatever goes wrong, nothing half-made is left.
    """
    path = place(name)
    if path.exists():
        return path
    try:
        async with locked(place(f".lock-{name}")):
            if path.exists():
                return path
            making = place(f".making-{name}")
            try:
                await to_end(_remove(making))  # of a process that was killed
                await fill(making)
                making.rename(path)
            finally:
                await to_end(_remove(making))
    except OSError as error:
        raise sentence(error) from None
    return path


async def _remove(path: Path) -> None:
    await in_thread(lambda _: remove(path))


def remove(path: Path) -> None:
    """A file or a directory of ours, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sentence(error: OSError, where: Path | None = None) -> SubstrateError:
    """What the file system of the cache, or of `where`, refused, and what to do."""
    where = where if where is not None else cache_dir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SubstrateError(f"the disk of {where} is full: free some space there, or set EXCISE_HOME to a larger one")
    return SubstrateError(f"the directory {where} cannot be used: {error.strerror or error} ({error.filename})")
