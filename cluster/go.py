"""The Go tool: a program built from a module of ours, into a directory that gets its name when it is whole."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError

_OLDEST = (1, 21)
"""The first that fetches the Go release which a module asks for, from the module proxy."""


def made(directory: Path, names: tuple[str, ...], build: Callable[[Path], None]) -> Path:
    """`directory` with these programs in it, built now if it is not there. It gets its name last, so it is never half full."""
    if _whole(directory, names):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with alone(directory.parent):
        if _whole(directory, names):  # another built it while we waited
            return directory
        building = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".building-"))
        try:
            build(building)
            shutil.rmtree(directory, ignore_errors=True)
            building.chmod(0o755)
            building.rename(directory)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return directory


def _whole(directory: Path, names: tuple[str, ...]) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in names)


@contextmanager
def alone(directory: Path) -> Generator[None]:
    """Two at once would do everything twice: the second waits for the first, and finds it done."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def build(module: Path, package: str, out: Path, link_flags: str, **environment: str) -> None:
    """Build `package` of the modules that `module` names into the file `out`."""
    built = subprocess.run(
        [tool(), "build", "-trimpath", "-ldflags", link_flags, "-o", str(out), package],
        cwd=module,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "auto", **environment},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if built.returncode:
        raise ClusterError(f"{out.name} could not be built; the Go tool says: {built.stderr.strip()[-2000:]}")


def tool() -> str:
    """A Go tool that is new enough to fetch the one a module needs."""
    go = shutil.which("go")
    if go is None:
        raise ClusterError(
            "no Go tool is on PATH: install Go 1.21 or newer (Debian 12's golang is too old; its backports have golang-1.2x) "
            "and try again"
        )
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        raise ClusterError(f"{go} is too old ({said.strip()}): put Go 1.21 or newer first on PATH and try again")
    return go
