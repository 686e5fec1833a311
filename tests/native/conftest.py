"""The C programs that only tests use, built with the sanitizers."""

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from file_tool import FileTool

NATIVE = Path(__file__).parents[2] / "native"


@pytest.fixture(scope="session")
def file_tool(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Generator[FileTool]:
    """native/test/file_tool.c; by descriptor, so that an ordinary user can run what lies in root's directory."""
    out = tmp_path_factory.mktemp("native")
    make = ["make", "-s", "-C", str(NATIVE), f"OUT={out}", "SANITIZE=1", "tests"]
    try:
        made = subprocess.run(make, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError as error:
        must_work("native", str(error))
        raise
    if made.returncode != 0 and "gcc: No such file" in made.stderr:
        must_work("native", made.stderr)
    assert made.returncode == 0, made.stderr
    program = os.open(out / "file_tool", os.O_PATH)
    yield FileTool(program)
    os.close(program)
