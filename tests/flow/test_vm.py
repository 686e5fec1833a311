"""`vm` where something is missing or fails: one sentence with the remedy or the console's tail, and nothing left.

No test here boots a machine to its sandbox: where one must run at all, its kernel does, and what comes after it is replaced.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise.api import connect
from excise.errors import CreateError, ExciseError, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec
from excise.storage.home import state_dir
from excise.substrates.vm import boot

ADDRESSES = ("vm", "vm+guest")
BOOT_S = 90.0
"""To the kernel's first program, by an emulated processor beside busy neighbours."""


@pytest.fixture
def first_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`first_program(script)`: what machines run instead of our own."""

    def put(script: str) -> None:
        place = tmp_path / "machine"
        shutil.copytree(boot.HERE, place)
        (place / "init").write_text(script)
        monkeypatch.setattr(boot, "HERE", place)

    return put


def open_one(address: str, spec: Spec | None = None, wait_s: float = BOOT_S) -> ExciseError:
    """Why no sandbox could be opened; nothing of it may be left."""

    async def opened() -> None:
        async with connect(address) as substrate, Sandbox(substrate, spec or Spec(), wait_s=wait_s):
            pass

    with pytest.raises(ExciseError) as caught:
        asyncio.run(opened())
    assert [path.name for path in state_dir().iterdir() if path.name.startswith("vm")] == []
    return caught.value


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_machine_image_says_how_to_build_it(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "empty"))
    error = open_one(address)
    assert isinstance(error, SpecError)
    assert "excise image build excise/machine" in str(error)


def test_without_asyncssh_the_extra_is_named() -> None:
    script = """
import asyncio, sys
sys.modules["asyncssh"] = None
from excise.errors import SubstrateError
from excise.registry import make
try:
    asyncio.run(make("vm").probe())
except SubstrateError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'excise[vm]'" in said


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_missing_kernel(address: str, runs_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    runs_here(address)
    monkeypatch.setenv("EXCISE_KERNEL", "/nowhere/vmlinuz")
    error = open_one(address)
    assert isinstance(error, SubstrateError)
    assert "/nowhere/vmlinuz" in str(error)


def test_options_that_make_no_machine(runs_here: Callable[[str], None]) -> None:
    runs_here("vm")
    assert "from 1 on" in str(open_one("vm?memory=0"))
    assert "no option 'memroy'" in str(open_one("vm?memroy=1"))


def test_the_hosts_own_directories_are_in_no_machine(runs_here: Callable[[str], None]) -> None:
    runs_here("vm")
    assert isinstance(open_one("vm?image=host"), SpecError)


def test_a_disk_that_is_too_small(runs_here: Callable[[str], None]) -> None:
    runs_here("vm")
    assert "limits.disk_bytes=4096" in str(open_one("vm", Spec(limits=Limits(disk_bytes=4096))))


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Where live sandboxes lie, and nothing can be written."""
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "full", str(place)], check=True)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_named(runs_here: Callable[[str], None], full_disk: Path) -> None:
    """It is another file system than the cache's, too: what is copied from there is copied by hand."""
    runs_here("vm+guest")
    error = open_one("vm+guest")
    assert isinstance(error, SubstrateError)
    assert f"the disk of {full_disk}" in str(error)
    assert "is full" in str(error)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_kernel_panic_is_told_with_the_consoles_tail(
    address: str, runs_here: Callable[[str], None], first_program: Callable[[str], None]
) -> None:
    """The first program's end is the kernel's."""
    runs_here(address)
    first_program("#!/bin/sh\necho 'excise: no such luck'\nexit 7\n")
    error = open_one(address)
    assert isinstance(error, CreateError)
    assert "the virtual machine's kernel panicked" in str(error)
    assert "exitcode=0x00000700" in str(error)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_machine_that_never_boots_is_given_up_in_time(
    address: str, runs_here: Callable[[str], None], first_program: Callable[[str], None]
) -> None:
    runs_here(address)
    first_program("#!/bin/sh\nmount -t proc proc /proc\nwhile :; do read -r none <&1; done\n")
    begun = time.monotonic()
    error = open_one(address, wait_s=10.0)
    assert isinstance(error, CreateError)
    assert "did not boot in time" in str(error)
    assert time.monotonic() - begun < 10.0 + BOOT_S  # which is not its speed: it ends at all
