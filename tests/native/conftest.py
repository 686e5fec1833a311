"""The C programs that only tests use, built with the sanitizers."""

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from file_tool import FileTool
from raw_guest import RawGuest

NATIVE = Path(__file__).parents[2] / "native"


def _made(out: Path, target: str, must_work: Callable[[str, str], None]) -> None:
    make = ["make", "-s", f"-j{os.cpu_count()}", "-C", str(NATIVE), f"OUT={out}", "SANITIZE=1", target]
    try:
        made = subprocess.run(make, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError as error:
        must_work("native", str(error))
        raise
    if made.returncode != 0 and "gcc: No such file" in made.stderr:
        must_work("native", made.stderr)
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="session")
def file_tool(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Generator[FileTool]:
    """native/test/file_tool.c; by descriptor, so that an ordinary user can run what lies in root's directory."""
    out = tmp_path_factory.mktemp("native")
    _made(out, "tests", must_work)
    program = os.open(out / "file_tool", os.O_PATH)
    yield FileTool(program)
    os.close(program)


@pytest.fixture(scope="session")
def guest_program(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Path:
    """The guest, with the sanitizers in it."""
    out = tmp_path_factory.mktemp("guest")
    _made(out, f"{out}/excise-guest", must_work)
    return out / "excise-guest"


@pytest.fixture
def guest(guest_program: Path) -> Generator[RawGuest]:
    with RawGuest(guest_program) as guest:
        yield guest
