"""Steps as layers on the namespace substrate: built once however many ask, served whole, and never with a secret in them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.action import Shell
from excise.api import connect
from excise.cli.entry import main
from excise.errors import CreateError
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec, Step
from excise.storage import skeleton
from excise.storage.saved.steps import StepRecord
from excise.storage.store import remove_tree
from excise.substrate import Snapshot, Substrate
from reachable import reachable

NONCE = "cat /proc/sys/kernel/random/uuid"
ONE = Step("one", (Shell(f"{NONCE} > one; touch /tmp/scratch; sleep 1000 & rm -r /var/tmp"),))
TWO = Step("two", (Shell(f"{NONCE} > two; test ! -e /tmp/scratch"),))
SPEC = Spec(image="host", steps=(ONE, TWO))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_here: Callable[[str], None]) -> Iterator[Path]:
    """A cache of the test's own."""
    runs_here("namespace")
    place = tmp_path / "home"
    monkeypatch.setenv("EXCISE_HOME", str(place))
    yield place
    if place.exists():
        remove_tree(place)


def _run(work: Callable[[Substrate], Coroutine[Any, Any, None]]) -> None:
    async def once() -> None:
        async with asyncio.timeout(60), connect("namespace") as substrate:
            await work(substrate)

    asyncio.run(once())


async def _made(substrate: Substrate, spec: Spec | Snapshot = SPEC, script: str = "cat *") -> str:
    async with Sandbox(substrate, spec) as box:
        return (await box.run(script)).text


def _saved(home: Path) -> list[Path]:
    return sorted((home / "saved/layers").glob("[!.]*"))


def test_a_step_that_is_not_shared_is_run_in_each(home: Path) -> None:
    async def work(substrate: Substrate) -> None:
        alone = Spec(image="host", steps=(ONE,)).unshared()
        assert await _made(substrate, alone) != await _made(substrate, alone)

    _run(work)
    assert _saved(home) == []


def test_sixteen_creates_of_a_new_spec_build_it_once(home: Path) -> None:
    async def work(substrate: Substrate) -> None:
        made = await asyncio.gather(*(_made(substrate) for _ in range(16)))
        assert len(set(made)) == 1
        assert len(made[0].split()) == 2

    _run(work)
    assert len(_saved(home)) == 2


def test_what_steps_removed_stays_removed_and_their_scratch_and_processes_are_gone() -> None:
    async def work(substrate: Substrate) -> None:
        seen = await _made(substrate, script="ls -A /tmp; ls /var; for p in /proc/[0-9]*; do cat $p/comm; done")
        assert "scratch" not in seen
        assert "tmp" not in seen.split()
        assert "sleep" not in seen

    _run(work)


def test_another_client_starts_over_them_and_builds_only_what_is_new() -> None:
    kept: list[str] = []

    async def first(substrate: Substrate) -> None:
        kept.extend((await _made(substrate)).split())

    async def then(substrate: Substrate) -> None:
        assert (await _made(substrate)).split() == kept
        three = Step("three", (Shell(f"{NONCE} > zthree"),))
        longer = (await _made(substrate, msgspec.structs.replace(SPEC, steps=(ONE, TWO, three)))).split()
        assert longer[:2] == kept
        assert len(longer) == 3
        other_terms = msgspec.structs.replace(SPEC, limits=Limits(disk_bytes=1 << 28), labels={"a": "b"}, network="open")
        assert (await _made(substrate, other_terms)).split() == kept
        other = await _made(substrate, msgspec.structs.replace(SPEC, env={"SEEN": "by steps"}))
        assert set(other.split()).isdisjoint(kept)

    _run(first)
    _run(then)


def test_snapshot_reset_and_fork_are_over_them() -> None:
    async def work(substrate: Substrate) -> None:
        async with Sandbox(substrate, SPEC) as box:
            start = (await box.run("cat *")).text
            await box.run("echo mine > three")
            taken = await box.snapshot()
            await box.run("rm *")
            await box.reset(taken)
            assert "mine" in (await box.run("cat *")).text
            assert (await box.run("rm three; cat *")).text == start
            assert sorted((await _made(substrate, taken)).split()) == sorted(["mine", *start.split()])

    _run(work)


def test_steps_have_the_network_they_build_with_and_the_run_has_not() -> None:
    step = Step("fetch", (Shell("echo ${HTTP_PROXY:-none} > proxy"),))
    spec = Spec(image="host", steps=(step,), build_network="open", network="none")

    async def work(substrate: Substrate) -> None:
        for _ in range(2):
            built, running, listening = (
                await _made(substrate, spec, "cat proxy; echo ${HTTP_PROXY:-none}; cat /proc/net/tcp | wc -l")
            ).split()
            assert built.startswith("http://")
            assert (running, listening) == ("none", "1")

    _run(work)


def test_a_step_that_fails_says_why_and_leaves_nothing(home: Path) -> None:
    spec = Spec(image="host", steps=(Step("broken", (Shell("echo because >&2; exit 3"),)),))

    async def work(substrate: Substrate) -> None:
        for _ in range(2):
            with pytest.raises(CreateError, match="step 'broken' failed: because"):
                await _made(substrate, spec)

    _run(work)
    assert _saved(home) == []


def test_what_a_step_did_with_a_secret_is_not_kept(home: Path) -> None:
    step = Step("login", (Shell(f"{NONCE} > one; echo $KEY > key"),))
    spec = Spec(image="host", steps=(step,), secrets={"KEY": Secret("s3cr3t-value")})

    async def work(substrate: Substrate) -> None:
        first, second = [await _made(substrate, spec) for _ in range(2)]
        assert "s3cr3t-value" in first
        assert first != second  # each ran its own

    _run(work)
    assert not (home / "saved/layers").exists() or _saved(home) == []
    assert [path for path in home.rglob("*") if path.is_file() and b"s3cr3t-value" in path.read_bytes()] == []


def test_gc_removes_what_is_leased_no_more(home: Path) -> None:
    async def build(substrate: Substrate) -> None:
        await _made(substrate)
        assert [name for name in await substrate.collect() if name.startswith("sha256:")] == []

    async def collect(substrate: Substrate) -> None:
        gone = [name for name in await substrate.collect() if name.startswith("sha256:")]  # there may be others' control groups
        assert sorted(name.replace(":", "-") for name in gone) == sorted(path.name for path in built)

    _run(build)
    built = _saved(home)
    for record in (home / "saved/steps").iterdir():
        read = msgspec.json.decode(record.read_bytes(), type=StepRecord)
        record.write_bytes(msgspec.json.encode(msgspec.structs.replace(read, until_s=1.0)))
    _run(collect)
    assert _saved(home) == []


def test_a_corrupted_layer_is_named_and_built_again_when_it_is_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def build(substrate: Substrate) -> None:
        made.append(await _made(substrate))

    made: list[str] = []
    _run(build)
    (damaged,) = (path for path in _saved(home) if (path / "tree" / _work() / "two").exists())
    (damaged / "tree" / _work() / "two").write_text("another")
    assert main(["image", "verify"]) == 1
    assert damaged.name.replace("-", ":") in capsys.readouterr().err
    remove_tree(damaged)
    _run(build)
    assert made[0].split()[0] == made[1].split()[0]  # the first step stands
    assert main(["image", "verify"]) == 0


def _work() -> str:
    """The working directory of the host's image, below its root."""
    return skeleton.WORKDIR.strip("/")


_KILLED = """
import asyncio, sys
from excise.action import Shell
from excise.api import connect
from excise.cli.entry import main
from excise.sandbox import Sandbox
from excise.spec import Spec, Step
async def main():
    build = Step("one", (Shell("seq 20000 > one; echo half > two; sleep " + sys.argv[1]),))
    async with connect("namespace") as substrate:
        print("building", flush=True)
        async with Sandbox(substrate, Spec(image="host", steps=(build,))) as box:
            print((await box.run("wc -l < one")).text, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("moment_s", [0.05, 0.3, 0.6])
def test_a_client_killed_while_it_builds_leaves_nothing_that_is_served(home: Path, moment_s: float) -> None:
    command = [sys.executable, "-c", _KILLED]
    with subprocess.Popen([*command, "100"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        try:
            process.wait(moment_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
    assert not (home / "saved/steps").exists() or list((home / "saved/steps").glob("[!.]*")) == []
    done = subprocess.run([*command, "0"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["building", "20000"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_users_steps_are_built_and_served(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 12345, 12345)
    reachable(tmp_path)
    done = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", sys.executable, "-c", _KILLED, "0"],
        env={"EXCISE_HOME": str(place / "home"), "HOME": str(place), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    if "Permission denied" in done.stderr or "user namespace" in done.stderr:
        pytest.skip("another user cannot read this checkout, or make sandboxes here")
    assert done.stdout.split() == ["building", "20000"], done.stderr
    assert len(list((place / "home/saved/layers").glob("[!.]*"))) == 1
