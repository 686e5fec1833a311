"""Kept snapshots on the namespace substrate: they outlive whoever took them, are leased, listed, deleted, and whole."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.action import Exec, Shell
from excise.api import connect
from excise.errors import SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Secret, Spec, Step
from excise.storage.saved.snapshots import SavedSnapshot, SavedSnapshots
from excise.storage.store import remove_tree
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import Snapshot, Substrate
from excise.substrates.namespace.saved import MOST_LAYERS

STEP = Step("one", (Shell("echo by-a-step > /var/tmp/step"),))
TAKES_ONE = """
import asyncio, os, signal
from excise import Sandbox, Shell, Spec, Step, connect
from excise.spec import Secret

async def main():
    step = Step("one", (Shell("echo by-a-step > /var/tmp/step"),))
    async with connect("namespace") as substrate:
        async with Sandbox(substrate, Spec(image="host", steps=(step,))) as box:
            await box.run("echo first > /var/tmp/file; mkdir /var/tmp/there; rm /etc/passwd")
            await box.run("cd /var/tmp/there; export COLOUR=red", session="main")
            kept = await box.snapshot(keep_s=600)
            await box.run("echo later > /var/tmp/file")
            print(kept.id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_here: Callable[[str], None]) -> Iterator[Path]:
    """A cache of the test's own."""
    runs_here("namespace")
    place = tmp_path / "home"
    monkeypatch.setenv("EXCISE_HOME", str(place))
    yield place
    if place.exists():
        remove_tree(place)


def run(body: Callable[[Substrate], Coroutine[Any, Any, None]], address: str = "namespace") -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            await body(substrate)

    before = descriptors()
    asyncio.run(scenario())
    assert descriptors() == before


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


async def text(box: Sandbox, script: str, **more: Any) -> str:
    done = await box.run(script, **more)
    assert done.ok, done.text
    return done.text.strip()


async def taken(substrate: Substrate, script: str, keep_s: float = 600) -> Snapshot:
    async with Sandbox(substrate, Spec(image="host")) as box:
        await text(box, script)
        return await box.snapshot(keep_s=keep_s)


def layers(home: Path) -> list[Path]:
    return sorted((home / "saved/layers").glob("sha256-*"))


async def excise(*words: str, code: int = 0) -> str:
    """What the command line says."""
    script = "import sys; from excise.cli import main; sys.exit(main())"
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await done.communicate()
    assert done.returncode == code, said
    return said.decode()


@asynccontextmanager
async def store() -> AsyncGenerator[SavedSnapshots]:
    keeper = Storekeeper()
    try:
        yield SavedSnapshots(keeper)
    finally:
        await keeper.close()


def test_another_process_starts_from_it_after_the_first_was_killed() -> None:
    done = subprocess.run([sys.executable, "-c", TAKES_ONE], stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL

    async def body(substrate: Substrate) -> None:
        (kept,) = await substrate.snapshots()
        assert kept.id == done.stdout.strip()
        assert kept.spec == Spec(image="host")
        assert 0 < (kept.lease_s or 0) <= 600
        async with Sandbox(substrate, kept) as box:
            for _ in range(2):
                assert await text(box, "cat /var/tmp/step /var/tmp/file; test ! -e /etc/passwd") == "by-a-step\nfirst"
                assert await text(box, "echo $PWD $COLOUR", session="main") == "/var/tmp/there red"
                await box.run("rm /var/tmp/step; echo other > /var/tmp/file; touch /etc/passwd")
                await box.reset(kept)
            async with box.fork(2) as group:
                assert [await text(child, "cat /var/tmp/file") for child in group] == ["first", "first"]

    run(body, "namespace?prove=1")


def test_its_spec_is_said_by_who_starts_from_it() -> None:
    async def body(substrate: Substrate) -> None:
        await taken(substrate, "echo one > /var/tmp/one")
        (kept,) = await substrate.snapshots()
        spec = Spec(image="host", env={"WORD": "said"}, secrets={"TOKEN": Secret("hidden")})
        mine = msgspec.structs.replace(kept, spec=spec)
        async with Sandbox(substrate, mine) as box:
            assert await text(box, "echo $WORD $TOKEN; cat /var/tmp/one") == "said hidden\none"
            with pytest.raises(SpecError, match="its own spec"):
                await box.reset(kept)
            await box.run("rm /var/tmp/one")
            await box.reset(mine)
            assert await text(box, "cat /var/tmp/one") == "one"

    run(body)


def test_a_secret_is_nowhere_in_the_store(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        spec = Spec(image="host", secrets={"TOKEN": Secret("a-hidden-word")}, env={"PLAIN": "a-plain-word"})
        async with Sandbox(substrate, spec) as box:
            await box.run("export SAME=$TOKEN KEPT=yes; touch /var/tmp/one", session="main")
            kept = await box.snapshot(keep_s=600)
        (listed,) = await substrate.snapshots()
        assert listed.spec == Spec(image="host")
        assert listed.sessions[0].env["KEPT"] == "yes"
        assert kept.spec == spec
        records = [path.read_bytes() for path in (home / "saved/snapshots").iterdir()]
        assert records
        assert not any(word in record for record in records for word in (b"a-hidden-word", b"a-plain-word"))

    run(body)


def test_reset_and_diff_go_between_kept_ones_and_others() -> None:
    async def body(substrate: Substrate) -> None:
        async with Sandbox(substrate, Spec(image="host", steps=(STEP,))) as box:
            plain = await box.snapshot()
            await box.run("echo 1 > /var/tmp/file")
            kept = await box.snapshot(keep_s=600)
            assert await box.diff(kept) == ()
            await box.run("echo 2 > /var/tmp/file; rm /var/tmp/step")
            assert [(one.kind, one.path) for one in await box.diff(kept)] == [
                ("modified", "/var/tmp/file"),
                ("deleted", "/var/tmp/step"),
            ]
            await box.reset(kept)
            assert await box.diff() == ()
            assert [(one.kind, one.path) for one in await box.diff(plain)] == [("added", "/var/tmp/file")]
            await box.run("echo 3 > /var/tmp/third")
            over = await box.snapshot()
            assert await text(box, "cat /var/tmp/file /var/tmp/third") == "1\n3"
            await box.reset(plain)
            assert await text(box, "cat /var/tmp/step; ls /var/tmp") == "by-a-step\nstep"
            assert [(one.kind, one.path) for one in await box.diff(kept)] == [("deleted", "/var/tmp/file")]
            await substrate.discard(kept)
            await box.reset(over)
            assert await text(box, "cat /var/tmp/file") == "1"

    run(body)


def test_it_goes_with_its_lease_and_not_under_a_sandbox(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        kept = await taken(substrate, "echo one > /var/tmp/one", keep_s=1.5)
        async with Sandbox(substrate, kept) as box:
            between = await box.snapshot()
            async with asyncio.timeout(30):
                while await substrate.snapshots() != (between,):
                    await asyncio.sleep(0.05)
            with pytest.raises(SpecError, match="its lease ended"):
                await Sandbox(substrate, kept).open()
            with pytest.raises(SpecError, match="its lease ended"):
                await box.reset(kept)
            await substrate.collect()
            assert await text(box, "cat /var/tmp/one") == "one"
        await substrate.collect()
        async with Sandbox(substrate, between) as box:
            assert await text(box, "cat /var/tmp/one") == "one"
        assert len(layers(home)) == 1
        await substrate.discard(between)
        await substrate.collect()
        assert layers(home) == []

    run(body)


def test_the_command_line_lists_and_deletes_it(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        kept = await taken(substrate, "head -c 3000000 /dev/zero > /var/tmp/one")
        async with Sandbox(substrate, kept) as box:
            second = await box.snapshot(keep_s=7200)
            head, *rows = (await excise("snapshots", "namespace")).splitlines()
            assert head.split() == ["ID", "SUBSTRATE", "IMAGE", "SIZE", "LEASE", "PARENT"]
            assert [re.sub(r" +(9|10)m +", " 10m ", row).split() for row in rows] == [
                [kept.id, "namespace", "host", "2.9M", "10m", "-"],
                [second.id, "namespace", "host", "2.9M", "2h", kept.id],
            ]
            for one in (kept, second):
                assert await excise("snapshots", "namespace", "--rm", one.id) == ""
            assert await substrate.snapshots() == ()
            assert "there is no snapshot" in await excise("snapshots", "namespace", "--rm", kept.id, code=2)
            await excise("gc", "namespace")
            assert await text(box, "wc -c < /var/tmp/one") == "3000000"
        await substrate.collect()
        assert layers(home) == []

    run(body)


def test_nothing_written_and_many_in_a_row(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        kept = await taken(substrate, "true")
        for number in range(MOST_LAYERS + 3):
            async with Sandbox(substrate, kept) as box:
                await text(box, f"echo {number} > /var/tmp/{number}; rm -f /var/tmp/{number - 2}")
                kept = await box.snapshot(keep_s=600)
        async with Sandbox(substrate, kept) as box:
            assert await text(box, "ls /var/tmp; stat -c %a /") == f"{MOST_LAYERS + 1}\n{MOST_LAYERS + 2}\n755"
        saved = msgspec.json.decode((home / f"saved/snapshots/{kept.id}.json").read_bytes(), type=SavedSnapshot)
        assert 1 <= len(saved.layers) < MOST_LAYERS

    run(body)


def test_a_corrupted_layer_is_named(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        kept = await taken(substrate, "echo one > /var/tmp/one")
        (layer,) = layers(home)
        async with store() as saved:
            await saved.verify(kept.id)
            with (layer / "tree/var/tmp/one").open("r+b") as file:
                file.write(b"O")
            digest = layer.name.replace("-", ":")
            with pytest.raises(SubstrateError, match=f"{digest} is corrupted"):
                await saved.verify(kept.id)
        with pytest.raises(SandboxLost, match=f"saved layer {digest}"):
            await Sandbox(substrate, kept).open()

    run(body, "namespace?prove=1")


def test_another_image_is_refused(home: Path) -> None:
    async def body(substrate: Substrate) -> None:
        kept = await taken(substrate, "echo one > /var/tmp/one")
        record = home / f"saved/snapshots/{kept.id}.json"
        saved = msgspec.json.decode(record.read_bytes(), type=SavedSnapshot)
        record.write_bytes(msgspec.json.encode(msgspec.structs.replace(saved, image_digest="sha256:0")))
        with pytest.raises(SpecError, match="name the image it was taken on"):
            await Sandbox(substrate, kept).open()

    run(body)


@pytest.mark.parametrize("keep_s", [0, -1.0, float("inf"), float("nan")])
def test_a_lease_is_a_time(keep_s: float) -> None:
    async def body(substrate: Substrate) -> None:
        async with Sandbox(substrate, Spec(image="host")) as box:
            with pytest.raises(SpecError, match="keep_s"):
                await box.snapshot(keep_s=keep_s)
            assert (await box.run(Exec(("true",)))).ok

    run(body)
