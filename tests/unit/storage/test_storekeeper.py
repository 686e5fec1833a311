"""The storekeeper: trees worked on by a process beside ours, whatever becomes of it or of who asked."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage.trees import whole
from excise.storage.trees.diff import BOTH
from excise.storage.trees.storekeeper import Storekeeper
from reachable import reachable

from .overlays import opened


def _with(work: Callable[[Storekeeper], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Storekeeper() as keeper:
            async with asyncio.timeout(30):
                await work(keeper)
        assert _children() == set()

    before = _descriptors()
    asyncio.run(main())
    assert _descriptors() == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _filled(path: Path, files: int = 5) -> Path:
    path.mkdir()
    for number in range(files):
        (path / f"{number}").write_bytes(b"%d" % number * 100)
    return path


def test_it_does_what_the_functions_do(tmp_path: Path) -> None:
    source, target, other = _filled(tmp_path / "source"), tmp_path / "target", tmp_path / "other"
    target.mkdir()
    other.mkdir()

    async def work(keeper: Storekeeper) -> None:
        with opened(source, target, other) as (read, write, empty):
            assert await keeper.digest(read) == whole.digest(read)
            assert await keeper.copy(read, write) > 0
            assert await keeper.digest(write) == whole.digest(read)
            assert (await keeper.usage(write)).entries == 5
            changes = await keeper.diff([write], [empty], contents=BOTH)
            assert (changes[0].path, changes[0].kind, changes[0].after) == (b"0", "added", b"0" * 100)
            await keeper.remove(write)
        assert list(target.iterdir()) == []

    _with(work)


def test_names_and_contents_of_any_bytes_come_back_and_long_answers_too(tmp_path: Path) -> None:
    base, top = tmp_path / "base", tmp_path / "top"
    base.mkdir()
    top.mkdir()
    for number in range(300):
        (top / f"\udcff-{number:03}-{'x' * 200}").write_bytes(bytes(range(256)) * 10)

    async def work(keeper: Storekeeper) -> None:
        with opened(top, base) as (new, old):
            found = await keeper.diff([new], [old], contents=BOTH)
        assert len(found) == 300
        assert found[7].path == b"\xff-007-" + b"x" * 200
        assert found[7].after == bytes(range(256)) * 10

    _with(work)


def test_many_ask_at_once(tmp_path: Path) -> None:
    source = _filled(tmp_path / "source", 50)

    async def work(keeper: Storekeeper) -> None:
        with opened(source) as (tree,):
            wanted = whole.digest(tree)
            assert await asyncio.gather(*(keeper.digest(tree) for _ in range(100))) == [wanted] * 100
        assert len(_children()) == 1

    _with(work)


def test_errors_are_of_ours_and_say_what_to_do(tmp_path: Path) -> None:
    source = _filled(tmp_path / "source")
    (source / "large").write_bytes(os.urandom(100_000))
    target = tmp_path / "target"
    target.mkdir()

    async def work(keeper: Storekeeper) -> None:
        with opened(source, target) as (read, write):
            with pytest.raises(SpecError, match=r"more than 1,000 bytes, .*: remove some"):
                await keeper.copy(read, write, most_bytes=1000)
            with pytest.raises(SubstrateError, match="File exists"):
                await keeper.copy(read, write)
            with pytest.raises(SubstrateError, match="more than the 250"):
                await keeper.squash([read] * 251, write)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await keeper.digest(987654)

    _with(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_said_with_its_remedy(tmp_path: Path) -> None:
    source = _filled(tmp_path / "source")
    (source / "large").write_bytes(os.urandom(1 << 20))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "excise-small", small], check=True)

    async def work(keeper: Storekeeper) -> None:
        with opened(source, small) as (read, write):
            with pytest.raises(SubstrateError, match="the disk is full: free some space"):
                await keeper.copy(read, write)
            await keeper.remove(write)
        assert list(small.iterdir()) == []

    try:
        _with(work)
    finally:
        subprocess.run(["umount", small], check=True)


def _large(path: Path) -> Path:
    """A tree that takes a while."""
    for number in range(20):
        (path / f"{number:02}").mkdir(parents=True)
        for name in range(1000):
            (path / f"{number:02}" / f"{name}").touch()
    return path


def test_who_is_cancelled_has_it_stopped(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()

    async def work(keeper: Storekeeper) -> None:
        with opened(_large(tmp_path / "source"), target) as (read, write):
            asked = asyncio.ensure_future(keeper.copy(read, write))
            while not (target / "00/0").exists():
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            made = await keeper.usage(write)
            assert made.entries < 20_020
            assert await keeper.usage(write) == made
            await keeper.remove(write)
        assert list(target.iterdir()) == []

    _with(work)


def test_its_death_is_an_error_and_the_next_request_starts_another(tmp_path: Path) -> None:
    source = _filled(tmp_path / "small")

    async def work(keeper: Storekeeper) -> None:
        with opened(source, _large(tmp_path / "source")) as (tree, large):
            wanted = await keeper.digest(tree)
            asked = asyncio.ensure_future(keeper.digest(large))
            await keeper.usage(tree)  # so that the other is under way
            (pid,) = _children()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(SubstrateError, match="died: try again"):
                await asked
            assert await keeper.digest(tree) == wanted

    _with(work)


def test_it_is_ended_from_outside_of_a_loop_that_is_over(tmp_path: Path) -> None:
    before = _descriptors()
    keeper = Storekeeper()
    loop = asyncio.new_event_loop()
    with opened(tmp_path) as (tree,):
        loop.run_until_complete(keeper.digest(tree))
    loop.close()
    keeper.abandon()
    keeper.abandon()
    assert _children() == set()
    assert _descriptors() == before


def test_it_ends_with_its_client(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from pathlib import Path
from excise.storage.trees.storekeeper import Storekeeper
async def main():
    keeper = Storekeeper()
    await keeper.digest(os.open(sys.argv[1], os.O_RDONLY))
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0], flush=True)
    os._exit(0)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True, timeout=30)
    try:
        pidfd = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], 20)[0]
    finally:
        os.close(pidfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_reads_and_removes_what_is_closed_to_himself(tmp_path: Path) -> None:
    """With one id: root of a user namespace, whose files are the user's."""
    tmp_path.chmod(0o777)
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, 12345, 12345)
    reachable(tmp_path)
    done = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", sys.executable, "-c", _AS_ANOTHER, str(place)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd="/",
    )
    if "Permission denied" in done.stderr and "excise" in done.stderr:
        pytest.skip("another user cannot read this checkout")
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    assert list(place.iterdir()) == []


_AS_ANOTHER = """
import asyncio, os, sys, stat
from pathlib import Path
from excise.storage.trees.storekeeper import Storekeeper
place = Path(sys.argv[1])
source, target = place / "source", place / "target"
source.mkdir()
target.mkdir()
(source / "closed").mkdir()
(source / "closed/file").write_bytes(b"x")
(source / "closed/file").chmod(0)
(source / "closed").chmod(0)
async def main():
    async with Storekeeper() as keeper:
        read, write, both = (os.open(path, os.O_RDONLY) for path in (source, target, place))
        await keeper.copy(read, write)
        print("same" if await keeper.digest(read) == await keeper.digest(write) else "differ")
        await keeper.remove(both)
asyncio.run(main())
"""
