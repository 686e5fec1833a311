"""Snapshot, reset and fork of namespace sandboxes, beyond the contract: what is counted, freed, kept apart and proved."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec, Shell
from excise.errors import SandboxLost, SpecError
from excise.sandbox import Sandbox
from excise.spec import Limits, Mount, Spec, Step
from excise.storage.home import cache_dir
from excise.substrate import Snapshot
from excise.substrates.namespace import NamespaceSubstrate, depth
from reachable import reachable

MIB = 1 << 20


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


@asynccontextmanager
async def opened(**options: bool) -> AsyncGenerator[NamespaceSubstrate]:
    substrate = NamespaceSubstrate(**{"prove": True, **options})
    try:
        yield substrate
    finally:
        await substrate.close()


def run(body: Callable[[NamespaceSubstrate], Coroutine[Any, Any, None]], **options: bool) -> None:
    async def main() -> None:
        async with opened(**options) as substrate:
            await body(substrate)

    before = descriptors()
    asyncio.run(main())
    assert descriptors() == before


async def own(substrate: NamespaceSubstrate) -> tuple[Snapshot, ...]:
    """Those it took itself: whatever the user of this machine has kept is listed, too."""
    kept = {path.stem for path in (cache_dir() / "saved/snapshots").glob("*.json")}
    return tuple(one for one in await substrate.snapshots() if one.id not in kept)


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def launcher() -> int:
    """The launcher's process: of our children the one that is no Python."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "excise-launch\n")


def held() -> int:
    return len(list(Path(f"/proc/{launcher()}/fd").iterdir()))


async def text(box: Sandbox, script: str) -> str:
    seen = await box.run(script)
    assert seen.ok, seen.text
    return seen.text.strip()


# ---- many


def test_three_hundred_snapshots_in_a_row() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            taken: list[Snapshot] = []
            for number in range(300):
                await box.write("/number", f"{number}\n")
                await box.write(f"/n{number}", "")
                if number:
                    await box.remove(f"/n{number - 1}")
                taken.append(await box.snapshot())
            for number in (0, 1, 33, 34, 150, 299):
                await box.reset(taken[number])
                assert await text(box, "cat /number; ls /n[0-9]*") == f"{number}\n/n{number}"
            async with Sandbox(substrate, taken[299]) as child:
                assert await text(child, "cat /number; ls /n[0-9]*") == "299\n/n299"
            assert held() < 3 * depth.NO_MORE_LAYERS + 300
            for snapshot in taken:
                await substrate.discard(snapshot)
            assert await own(substrate) == ()

    run(body, prove=False)


def test_layers_are_squashed_under_a_sandbox_that_is_reset_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "MOST_LAYERS", 3)

    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            taken: list[Snapshot] = []
            for number in range(12):
                await box.write("/number", f"{number}")
                taken.append(await box.snapshot())
                if number % 4 == 3:  # a squash goes on beside this
                    await box.reset(taken[number - 2])
                    assert await text(box, "cat /number") == f"{number - 2}"
                    async with box.fork(2) as group:
                        assert [await text(child, "cat /number") for child in group] == [f"{number - 2}"] * 2
            for number, snapshot in enumerate(taken):
                await box.reset(snapshot)
                assert await text(box, "cat /number") == f"{number}"

    run(body)


def test_a_thousand_resets_leave_nothing() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            await box.run("true")
            before = held()
            for _ in range(100):
                await box.run("echo x > /x; echo y > /tmp/y; sleep 1000 &")
                await box.reset(snapshot)
            await box.run("true")
            assert held() <= before + 1
            assert await text(box, "ls -A /tmp; ls /x 2>/dev/null; true") == ""

    run(body, prove=False)


# ---- something lives


TWO_FILES = "n=0; while :; do n=$((n+1)); echo $n > /one; echo $n > /two; done"


def test_a_snapshot_of_what_lives_is_of_one_moment_and_it_goes_on() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            await box.run(f"({TWO_FILES}) > /dev/null 2>&1 & sleep 1000 > /dev/null & kill -STOP $!; echo $! > /stopped")
            for _ in range(5):
                snapshot = await box.snapshot()
                async with Sandbox(substrate, snapshot) as child:
                    # An echo empties its file before it writes: of the two at most one is between.
                    one, two = [await text(child, f"cat /{name} 2>/dev/null || true") for name in ("one", "two")]
                    assert one == "" or two == "" or int(one) - int(two) in (0, 1), (one, two)
                before = await text(box, "cat /one")
                assert await text(box, f"while test \"$(cat /one)\" = '{before}'; do :; done; echo on") == "on"
            assert await text(box, "grep State /proc/$(cat /stopped)/status") == "State:\tT (stopped)"

    run(body)


def test_a_thread_in_the_midst_of_a_write_is_waited_for() -> None:
    """It is back from the kernel long after the first thread stands still."""
    name = f"writer-{os.getpid()}"
    writer = (
        "import os, threading, time; whole = b'x' * (128 << 20); file = os.open('/written', os.O_CREAT | os.O_RDWR)\n"
        "def write():\n    while True: os.pwrite(file, whole, 0)\n"
        "threading.Thread(target=write).start(); open('/begun', 'w').close(); time.sleep(1000)"
    )

    def states() -> set[str]:
        named = (path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if name.encode() in path.read_bytes())
        return {path.read_text().rpartition(") ")[2][0] for process in named for path in process.glob("task/*/stat")}

    async def body(substrate: NamespaceSubstrate) -> None:
        handle = await substrate.create(Spec(), deadline_s=30, lease_s=600, labels={}, request_id="writes")
        await handle.start(Exec(("python3", "-c", writer, name)))
        assert (await handle.run(Shell("while ! test -e /begun; do sleep 0.01; done"))).ok
        for _ in range(5):
            await handle.link.freeze()
            assert states() == {"T"}
            handle.link.thaw()
        await handle.close()

    run(body, prove=False)


def test_an_action_that_is_asked_for_during_a_copy_runs_after_it() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            await box.run("sleep 1000 > /dev/null 2>&1 & for i in $(seq 300); do echo $i > /f$i; done")
            taking = asyncio.create_task(box.snapshot())
            while not taking.done():
                assert (await box.run("echo late > /late")).ok
            async with Sandbox(substrate, await taking) as child:
                assert await text(child, "ls /f* | wc -l") == "300"

    run(body)


def test_a_snapshot_that_is_cancelled_leaves_the_sandbox_as_it_is() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        for alive in ("true", "sleep 1000 > /dev/null 2>&1 &"):
            async with Sandbox(substrate) as box:
                await box.run(f"echo kept > /file; {alive}")
                for steps in range(0, 40, 3):
                    task = asyncio.create_task(box.snapshot())
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await substrate.discard(await task)
                    assert await text(box, "cat /file") == "kept"
        assert await own(substrate) == ()

    run(body, prove=False)


def test_a_reset_that_is_cancelled_is_a_lost_sandbox_or_none() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as first:
            snapshot = await first.snapshot()
            for steps in range(12):
                async with Sandbox(substrate, snapshot) as box:
                    await box.write("/later", "")
                    task = asyncio.create_task(box.reset(snapshot))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                    with contextlib.suppress(SandboxLost):
                        seen = await text(box, "ls /later 2>/dev/null; true")
                        assert seen == "" or task.cancelled()

    run(body, prove=False)


# ---- what stays, what goes


def test_ports_memory_and_queues_of_the_life_before_are_free() -> None:
    """A connection that was closed holds its port for a minute, and whoever binds it after a reset would be refused."""
    leave = """
import socket, os, ctypes
server = socket.socket(); server.bind(('127.0.0.1', 5000)); server.listen()
client = socket.create_connection(('127.0.0.1', 5000)); peer, _ = server.accept()
peer.close(); client.recv(1); client.close(); server.close()
libc = ctypes.CDLL(None)
assert libc.shmget(77, 4096, 0o1666) >= 0
"""
    bind = """
import socket, ctypes
server = socket.socket(); server.bind(('127.0.0.1', 5000)); server.listen()
print(ctypes.CDLL(None).shmget(77, 4096, 0o666))
"""

    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            snapshot = await box.snapshot()
            for _ in range(2):
                assert (await box.run(["python3", "-c", leave])).ok
                refused = await box.run(["python3", "-c", bind])
                assert b"in use" in refused.stderr, "this machine lets ports go at once: the test shows nothing"
                await box.reset(snapshot)
                seen = await box.run(["python3", "-c", bind])
                assert (seen.exit_code, seen.stdout) == (0, b"-1\n"), seen.text

    run(body)


def test_what_the_spec_says_holds_after_a_reset_and_in_a_fork(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("shown")
    reachable(tmp_path / "data")
    spec = Spec(
        workdir="/made/here",
        env={"NAME": "value"},
        mounts=(Mount(str(tmp_path / "data"), "/data"),),
        limits=Limits(disk_bytes=4 * MIB),
        boot=(Shell("echo up > up; exec sleep 1000"),),
        ready=(Exec(("test", "-e", "up")),),
    )

    async def check(box: Sandbox) -> None:
        seen = await text(box, "pwd; echo $NAME; cat /data/file up; touch /data/no 2>/dev/null || echo read-only")
        assert seen.split() == ["/made/here", "value", "shownup", "read-only"]
        full = await box.run(f"head -c {5 * MIB} /dev/zero > big; rm -f big")
        assert b"No space" in full.stderr

    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate, spec) as box:
            await check(box)
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            await check(box)
            async with box.fork(2) as group:
                for child in group:
                    await check(child)

    run(body)


def test_the_specs_user_is_who_acts_in_every_life() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        if not (await substrate.probe()).users:
            pytest.skip("one user")
        async with Sandbox(substrate, Spec(user="nobody", workdir="/tmp/own")) as box:
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            async with box.fork(1) as (child,):
                for one in (box, child):
                    assert await text(one, "id -un; pwd; ls -A") == "nobody\n/tmp/own"

    run(body)


def test_set_user_id_files_keep_their_meaning_in_forks() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        if not (await substrate.probe()).users:
            pytest.skip("one user")
        async with Sandbox(substrate) as box:
            await box.run("cp /usr/bin/id /own-id && chmod 4755 /own-id")
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            async with box.fork(1) as (child,):
                for one in (box, child):
                    assert (await one.run(["/own-id", "-u"], user="nobody")).text.strip() == "0"

    run(body, sudo=True)


def test_limits_count_what_was_sealed() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate, Spec(limits=Limits(disk_bytes=4 * MIB))) as box:
            await box.run(f"head -c {3 * MIB} /dev/zero > /one")
            snapshot = await box.snapshot()
            assert 3 * MIB <= snapshot.size_bytes < 4 * MIB
            with pytest.raises(OSError, match="No space") as caught:
                await box.write("/two", bytes(3 * MIB))
            assert caught.value.errno == errno.ENOSPC
            await box.reset(snapshot)
            await box.write("/two", bytes(3 * MIB))

    run(body)


# ---- whose


def test_snapshots_that_cannot_be_used_are_told() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate, ttl_s=60) as box, opened() as elsewhere:
            snapshot = await box.snapshot()
            assert await own(substrate) == (snapshot,)
            with pytest.raises(SpecError, match="has no snapshot"):
                await Sandbox(elsewhere, snapshot).open()
            async with Sandbox(substrate, Spec(env={"OTHER": "spec"})) as other:
                with pytest.raises(SpecError, match="its own spec"):
                    await other.reset(snapshot)
                assert await text(other, "echo lives") == "lives"
            await substrate.discard(snapshot)
            with pytest.raises(SpecError, match="has no snapshot"):
                await box.reset(snapshot)
            assert await text(box, "echo lives") == "lives"

    run(body)


def test_a_snapshots_lease_ends() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            await box.renew(0.3)
            snapshot = await box.snapshot()
            await box.renew(60)
            while await own(substrate):
                await asyncio.sleep(0.05)
            with pytest.raises(SpecError, match="its lease ended"):
                await box.reset(snapshot)
            assert await text(box, "echo lives") == "lives"

    run(body)


def test_snapshots_end_with_their_launcher() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            snapshot = await box.snapshot()
            os.kill(launcher(), 9)
            with pytest.raises(SandboxLost):
                await box.reset(snapshot)
        with pytest.raises(SpecError, match="has no snapshot"):
            await Sandbox(substrate, snapshot).open()
        async with Sandbox(substrate) as another:
            assert await text(another, "echo lives") == "lives"

    run(body)


# ---- proof


def test_a_layer_that_changed_is_found() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            # One that was copied: a sealed one is read-only, for everybody.
            await box.run("echo before > /file; sleep 1000 > /dev/null 2>&1 &")
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            kept = substrate._snapshots.find(snapshot)  # pyright: ignore[reportPrivateUsage]
            assert kept is not None
            layer = kept.stack.ids[0]
            kept.release()
            assert substrate._launcher is not None  # pyright: ignore[reportPrivateUsage]
            directory = await substrate._launcher.open(layer)  # pyright: ignore[reportPrivateUsage]
            try:
                os.close(os.open("file", os.O_WRONLY | os.O_TRUNC, dir_fd=directory))
            finally:
                os.close(directory)
            with pytest.raises(SandboxLost, match="not proved: layer"):
                await box.reset(snapshot)
            with pytest.raises(SandboxLost):
                await box.run("true")

    if os.geteuid() != 0:
        pytest.skip("writes into a layer as the host's root")
    run(body)


def test_steps_are_no_change_and_are_in_snapshots() -> None:
    steps = (Step("one", (Shell("echo step > /step"),)),)

    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate, Spec(steps=steps)) as box:
            assert [change.path for change in await box.diff()] == []
            await box.write("/mine", "x")
            assert [change.path for change in await box.diff()] == ["/mine"]
            snapshot = await box.snapshot()
            await box.remove("/step")
            assert [(change.path, change.kind) for change in await box.diff(snapshot)] == [("/step", "deleted")]
            await box.reset(snapshot)
            assert await text(box, "cat /step /mine") == "step\nx"

    run(body)


def test_what_a_process_deletes_after_a_copied_snapshot_is_told() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            await box.run("echo a > /gone; echo b > /changed; mkdir /d; echo c > /d/x; sleep 1000 > /dev/null 2>&1 &")
            snapshot = await box.snapshot()
            assert await box.diff(snapshot) == ()
            await box.run("rm /gone; echo c > /changed; rm -r /d; echo d > /new")
            told = [(change.path, change.kind) for change in await box.diff(snapshot)]
            assert told == [("/changed", "modified"), ("/d", "deleted"), ("/gone", "deleted"), ("/new", "added")]

    run(body)


def test_a_patch_holds_what_is_asked_for_and_what_lies_elsewhere_is_not_in_its_bound() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async with Sandbox(substrate) as box:
            snapshot = await box.snapshot()
            await box.run("mkdir /source /built; echo fix > /source/a; truncate -s 65M /built/artifact")
            assert "+fix" in await box.diff(snapshot, patch=True, under="/source")
            await box.run("truncate -s 1T /source/enormous")
            with pytest.raises(SpecError, match="more than 67,108,864 bytes"):
                await box.diff(snapshot, patch=True, under="/source")

    run(body, prove=False)
