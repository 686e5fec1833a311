"""What the contract suite cannot see from outside: descriptors, and what a program inherits."""

import asyncio
from collections.abc import Callable

import pytest

from excise import Limits, Sandbox, Spec
from excise.action import KEEP_ALL, End


@pytest.mark.parametrize("address", ["local", "chroot"])
def test_a_program_holds_its_three_streams_and_no_other_descriptor(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    # Inside a chroot there is no /proc: a duplicate of each descriptor is tried instead.
    script = 'for n in $(seq 3 255); do (eval "true <&$n") 2>/dev/null && echo $n; done; :'

    async def check() -> None:
        async with Sandbox(address) as box:
            assert (await box.run(["sh", "-c", script])).stdout == b""
            assert (await box.run(f"sh -c '{script}'", session="main")).stdout == b""

    asyncio.run(check())


def test_signals_that_python_ignores_are_not_ignored_by_programs() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            seen = await box.run("yes | head -n 1", timeout_s=20)
            assert seen.stdout == b"y\n"
            ignored = (await box.run("grep SigIgn /proc/self/status")).text.split()[1]
            # 32 and 33 are the C library's own, which its posix_spawn leaves ignored.
            assert int(ignored, 16) & 0x7FFFFFFF == 0
            ignored = (await box.run("grep SigIgn /proc/self/status", session="main")).text.split()[1]
            assert int(ignored, 16) & (1 << 12) == 0, "SIGPIPE is ignored in a session"

    asyncio.run(check())


def test_a_process_left_running_may_go_on_printing() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            seen = await box.run("(sleep 0.1; head -c 300000 /dev/zero; echo done > done) &")
            assert seen.still_running
            assert (await box.run("while [ ! -s done ]; do sleep 0.05; done", timeout_s=30)).ok

    asyncio.run(check())


def test_a_fast_producer_leaves_the_loop_to_others() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            flood = asyncio.ensure_future(box.run("head -c 50000000 /dev/zero", keep=KEEP_ALL))
            answers = 0
            while not flood.done():
                await box.run(":", session="main")
                answers += 1
            assert len((await flood).stdout) == 50_000_000
            assert answers >= 1

    asyncio.run(check())


def test_peak_memory_is_the_programs_own_or_not_told() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            small = await box.run(["true"])
            large = await box.run(["sh", "-c", "head -c 100000000 /dev/zero | tail -c 100000000 | wc -c"])
            assert small.max_rss_bytes is None
            assert large.max_rss_bytes is not None
            assert large.max_rss_bytes > 90_000_000

    asyncio.run(check())


def test_a_full_disk_is_told_where_the_disk_is_limited(runs_here: Callable[[str], None]) -> None:
    runs_here("chroot")

    async def check() -> None:
        async with Sandbox("chroot", Spec(limits=Limits(disk_bytes=1 << 20))) as box:
            seen = await box.run("head -c 3000000 /dev/zero > big")
            assert seen.end is End.OUT_OF_DISK
            assert (await box.run("rm big; false")).end is End.EXITED
        async with Sandbox("chroot", Spec(limits=Limits(inodes=64))) as box:
            seen = await box.run("i=0; while [ $i -lt 200 ]; do : > f$i || exit 1; i=$((i+1)); done")
            assert seen.end is End.OUT_OF_DISK

    asyncio.run(check())
