import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec, Observation

Run = Callable[[Exec], Coroutine[Any, Any, Observation]]
_TOOLS = (
    "cat",
    "head",
    "tail",
    "stat",
    "mkdir",
    "rmdir",
    "rm",
    "mv",
    "ls",
    "chmod",
    "readlink",
    "id",
    "tar",
    "sleep",
    "setsid",
)


def _directory_of(shell: str, place: Path) -> Path:
    """A PATH whose `sh` is this shell; busybox's own tools with busybox's."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    place.mkdir()
    (place / "sh").symlink_to(found)
    for tool in _TOOLS:
        (place / tool).symlink_to(found if shell == "busybox" else shutil.which(tool) or "/nonexistent")
    return place


@pytest.fixture(params=["dash", "bash", "busybox"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs an Exec as a process of this machine, in `tmp_path / "work"`, with each shell there is."""
    path = _directory_of(request.param, tmp_path / "bin")
    (tmp_path / "work").mkdir()

    async def run_one(action: Exec) -> Observation:
        process = await asyncio.create_subprocess_exec(
            str(path / action.argv[0]) if "/" not in action.argv[0] else action.argv[0],
            *action.argv[1:],
            cwd=tmp_path / "work",
            env={"PATH": str(path), **action.env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            umask=0o022,
        )
        stdout, stderr = await process.communicate(action.stdin)
        return Observation(exit_code=process.returncode, stdout=stdout, stderr=stderr)

    return run_one


@pytest.fixture
def ordinary(tmp_path: Path) -> None:
    """Only an ordinary user can be refused a file."""
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
