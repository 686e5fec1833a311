"""Our end of the supervisor: how it is started, and what is left when it cannot be."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from excise.errors import CreateError
from excise.sandbox import Sandbox
from excise.storage.home import state_dir


def test_ctrl_c_does_not_reach_the_supervisor_even_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's Ctrl-C goes to our whole process group: a supervisor in it would die with a traceback and leave files."""
    sessions: list[bool] = []
    start = subprocess.Popen

    def started(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        process = start(*arguments, **options)
        sessions.append(os.getsid(process.pid) == process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)

    async def main() -> None:
        async with Sandbox("local"):
            pass

    asyncio.run(main())
    assert sessions == [True]


@pytest.mark.parametrize("address", ["local", "chroot"])
def test_a_sandbox_that_could_not_be_made_leaves_no_directory(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")

    async def main() -> None:
        async with Sandbox(address):
            pass

    with pytest.raises(CreateError):
        asyncio.run(main())
    assert list(state_dir().iterdir()) == []
