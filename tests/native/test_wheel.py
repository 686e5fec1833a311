"""What is installed holds the C programs, for every machine there is a compiler for, and can run them."""

import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PROGRAMS = ("excise-guest", "excise-launch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=TOP, check=True, timeout=100, stdout=subprocess.DEVNULL)
    (made,) = place.iterdir()
    assert made.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(made)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_wheel_carries_both_programs(machine: str, wheel: zipfile.ZipFile, must_work: Callable[[str, str], None]) -> None:
    if shutil.which("gcc" if machine == platform.machine() else f"{machine}-linux-gnu-gcc") is None:
        must_work(machine, f"there is no compiler for {machine}")
    for program in PROGRAMS:
        entry = wheel.getinfo(f"excise/native/{machine}/{program}")
        assert entry.external_attr >> 16 & 0o111 == 0o111
        head = wheel.read(entry)[:20]
        assert head[:4] == b"\x7fELF"
        assert head[18:20] == {"x86_64": b"\x3e\0", "aarch64": b"\xb7\0"}[machine]


def test_no_part_of_the_build_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith((".c", ".h", ".o", ".d", ".new"))] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_need_no_library(program: str, wheel: zipfile.ZipFile) -> None:
    """A static program has no interpreter: it runs in an image that has no libc, or another."""
    for name in wheel.namelist():
        if name.endswith(f"/{program}"):
            assert b"/ld-linux" not in wheel.read(name)[:4096]
