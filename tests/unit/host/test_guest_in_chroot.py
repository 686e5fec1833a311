"""The guest below a keeper: no trace of it in the root, no descriptor of it in an action, an end that is told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import CreateError, Exec, Limits, Sandbox, SandboxLost, Spec
from excise.host.descendants import Tree
from excise.host.guest import guest_below
from excise.host.link import Link
from excise.storage.home import state_dir

ADDRESS = "chroot+guest"
# A chroot has no /proc to read descriptors from: each number is tried. By a shell of one digit only the first ten could be.
DESCRIPTORS = """
import os
for number in range(256):
    try:
        os.fstat(number)
    except OSError:
        continue
    print(number)
"""


@pytest.fixture(autouse=True)
def _here(runs_here: Callable[[str], None]) -> None:
    runs_here(ADDRESS)


def guests() -> list[int]:
    """Those below this process, each before its own runners, which are called the same."""
    below = Tree().below((os.getpid(),))
    return [pid for pid in below if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"excise-guest\0")]


def test_an_action_finds_neither_the_program_nor_a_descriptor_of_it() -> None:
    async def check() -> None:
        async with Sandbox(ADDRESS) as box:
            assert (await box.run("find / -xdev -name '*excise*' 2>/dev/null; ls -A /proc")).text == ""
            python = os.path.realpath(sys.executable)
            assert (await box.run(Exec((python, "-I", "-S", "-c", DESCRIPTORS)))).text == "0\n1\n2\n"
            told = await box.run(f"{python} -I -S -c '{DESCRIPTORS}'", session="main")
            assert told.text == "0\n1\n2\n"

    asyncio.run(check())


def test_the_action_is_timed_by_the_guest_and_its_peak_is_its_own() -> None:
    """Where a runner of Python's starts it, the kernel's figure would be the runner's."""

    async def check() -> None:
        async with Sandbox(ADDRESS) as box:
            done = await box.run(Exec(("true",)))
            assert done.guest_ns
            assert done.max_rss_bytes

    asyncio.run(check())


def test_a_killed_guest_is_a_lost_sandbox_and_leaves_nothing() -> None:
    async def check() -> None:
        before = set(state_dir().iterdir())
        async with Sandbox(ADDRESS) as box:
            await box.run("setsid sleep 1000 >/dev/null 2>&1 &")
            guest = guests()[0]
            os.kill(guest, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await box.run("sleep 1000")
        assert set(state_dir().iterdir()) == before

    asyncio.run(check())
    assert guests() == []


def test_only_a_root_with_a_size_can_be_full() -> None:
    async def ends(limits: Limits) -> str:
        async with Sandbox(ADDRESS, Spec(limits=limits)) as box:
            return (await box.run("head -c 8000000 /dev/zero >large")).end.name

    assert asyncio.run(ends(Limits(disk_bytes=1 << 20))) == "OUT_OF_DISK"
    assert asyncio.run(ends(Limits())) == "EXITED"


def test_a_guest_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def check() -> None:
        link = Link()
        keeper = await link.keeper(tmp_path, workdir="/", root=None, lease_s=60, keep=True)
        try:
            with pytest.raises(CreateError, match="No such file or directory"):
                await guest_below(keeper, tmp_path / "none")
        finally:
            await keeper.close()
            await link.close()

    asyncio.run(check())


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's are made by root")
def test_a_daemon_of_another_user_ends_with_the_sandbox() -> None:
    async def check() -> None:
        async with Sandbox(ADDRESS) as box:
            await box.run("setsid sleep 4242.5 >/dev/null 2>&1 &", user="nobody")
            assert subprocess.run(["pgrep", "-f", "sleep 4242.5"], check=False, capture_output=True).stdout

    asyncio.run(check())
    assert not subprocess.run(["pgrep", "-f", "sleep 4242.5"], check=False, capture_output=True).stdout
