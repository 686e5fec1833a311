"""Step layers: built once, by whoever comes first; found by what they are made of; never half-made."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.action import Shell, Write
from excise.errors import CreateError
from excise.spec import Limits, Mount, Secret, Spec, Step
from excise.storage.saved.steps import LEASE_S, MOST_LAYERS, Start, StepLayers, StepRecord, is_shared, keys
from excise.storage.store import Image
from excise.storage.trees.storekeeper import Storekeeper

IMAGE = Image(name="i", digest="sha256:01", root=Path("/nowhere"), env={"A": "1"}, workdir="/work", user="7")
ONE, TWO, THREE = (Step(name, (Shell(f"echo {name}"),)) for name in ("one", "two", "three"))
SPEC = Spec(image="i", steps=(ONE, TWO))


class Builder:
    """Builds a step as a directory with its name in it; what it did is listed in a file, so that processes may share it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.log = place / "log"
        self.log.touch()
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def build(self, step: Step, below: tuple[Path, ...]) -> AsyncGenerator[int]:
        with self.log.open("a") as log:
            log.write(f"{step.name} over {len(below)}\n")
        await self.gate.wait()
        if step.name == "broken":
            raise CreateError("step 'broken' failed: as it should")
        upper = self.place / f"upper-{step.name}-{os.urandom(4).hex()}"
        upper.mkdir()
        (upper / step.name).write_text(str(len(below)))
        descriptor = os.open(upper, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def done(self) -> list[str]:
        return self.log.read_text().splitlines()


def _with(tmp_path: Path, work: Callable[[StepLayers, Builder], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Storekeeper() as keeper, asyncio.timeout(60):
            layers = StepLayers(keeper, tmp_path / "home")
            try:
                await work(layers, Builder(tmp_path))
            finally:
                await layers.close()

    asyncio.run(main())
    assert list((tmp_path / "home/saved/pins").glob("[!.]*")) == []


def _names(start: Start) -> list[list[str]]:
    return [sorted(entry.name for entry in path.iterdir()) for path in start.paths]


def test_steps_are_built_once_and_a_longer_row_over_a_shorter(tmp_path: Path) -> None:
    async def work(layers: StepLayers, builder: Builder) -> None:
        for _ in range(2):
            start = await layers.layers_for(SPEC, IMAGE, builder.build)
            assert (_names(start), start.steps) == ([["two"], ["one"]], ())
        longer = msgspec.structs.replace(SPEC, steps=(ONE, TWO, THREE))
        assert _names(await layers.layers_for(longer, IMAGE, builder.build)) == [["three"], ["two"], ["one"]]
        other = msgspec.structs.replace(SPEC, steps=(ONE, THREE))
        assert _names(await layers.layers_for(other, IMAGE, builder.build)) == [["three"], ["one"]]
        assert builder.done == ["one over 0", "two over 1", "three over 2", "three over 1"]

    _with(tmp_path, work)
    _with(tmp_path, _found_again)


async def _found_again(layers: StepLayers, builder: Builder) -> None:
    start = await layers.layers_for(SPEC, IMAGE, builder.build)
    assert _names(start) == [["two"], ["one"]]
    assert len(builder.done) == 4


def test_a_long_row_of_steps_is_a_few_layers_with_all_that_they_wrote(tmp_path: Path) -> None:
    steps = tuple(Step(f"step-{number}", (Shell(f"echo {number}"),)) for number in range(40))

    async def work(layers: StepLayers, builder: Builder) -> None:
        start = await layers.layers_for(Spec(image="i", steps=steps), IMAGE, builder.build)
        assert len(start.paths) <= MOST_LAYERS + 1
        assert sorted(name for names in _names(start) for name in names) == sorted(step.name for step in steps)

    _with(tmp_path, work)


def test_sixteen_at_once_have_one_builder(tmp_path: Path) -> None:
    async def work(layers: StepLayers, builder: Builder) -> None:
        starts = await asyncio.gather(*(layers.layers_for(SPEC, IMAGE, builder.build) for _ in range(16)))
        assert len(set(starts)) == 1
        assert builder.done == ["one over 0", "two over 1"]

    _with(tmp_path, work)


_BUILDS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.unit.storage.test_steps import IMAGE, SPEC, Builder, StepLayers, Storekeeper
async def main():
    async with Storekeeper() as keeper:
        builder = Builder(Path(sys.argv[1]))
        if sys.argv[3] == "hang":
            builder.gate.clear()
        layers = StepLayers(keeper, Path(sys.argv[1]) / "home")
        await layers.layers_for(SPEC, IMAGE, builder.build)
        await layers.close()
asyncio.run(main())
"""


def _process(tmp_path: Path, how: str) -> "subprocess.Popen[bytes]":
    top = Path(__file__).parents[3]
    return subprocess.Popen([sys.executable, "-c", _BUILDS, tmp_path, top, how])


def test_processes_have_one_builder_among_them(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    started = [_process(tmp_path, "build") for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert (tmp_path / "log").read_text().splitlines() == ["one over 0", "two over 1"]


def test_a_builder_that_is_killed_leaves_the_next_to_build(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    hanging = _process(tmp_path, "hang")

    async def work(layers: StepLayers, builder: Builder) -> None:
        while not builder.done:
            await asyncio.sleep(0.01)
        asked = asyncio.ensure_future(layers.layers_for(SPEC, IMAGE, builder.build))
        await asyncio.sleep(0.05)
        assert not asked.done()  # it waits for the other
        hanging.send_signal(signal.SIGKILL)
        await asyncio.to_thread(hanging.wait)
        assert _names(await asked) == [["two"], ["one"]]
        assert builder.done == ["one over 0", "one over 0", "two over 1"]

    _with(tmp_path, work)


def test_a_step_that_fails_fails_for_all_who_wait_and_is_tried_again(tmp_path: Path) -> None:
    spec = Spec(image="i", steps=(ONE, Step("broken", (Shell("false"),))))

    async def work(layers: StepLayers, builder: Builder) -> None:
        asked = [layers.layers_for(spec, IMAGE, builder.build) for _ in range(3)]
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(error) for error in failed] == ["step 'broken' failed: as it should"] * 3
        with pytest.raises(CreateError):
            await layers.layers_for(spec, IMAGE, builder.build)
        assert builder.done == ["one over 0", "broken over 1", "broken over 1"]

    _with(tmp_path, work)


def test_who_gives_up_leaves_the_others_theirs_and_the_last_ends_it(tmp_path: Path) -> None:
    async def work(layers: StepLayers, builder: Builder) -> None:
        builder.gate.clear()
        asked = [asyncio.ensure_future(layers.layers_for(SPEC, IMAGE, builder.build)) for _ in range(2)]
        while not builder.done:
            await asyncio.sleep(0)
        asked[0].cancel()
        await asyncio.wait([asked[0]])
        assert not asked[1].done()
        asked[1].cancel()
        await asyncio.wait(asked)
        assert all(each.cancelled() for each in asked)
        builder.gate.set()
        assert _names(await layers.layers_for(SPEC, IMAGE, builder.build)) == [["two"], ["one"]]
        assert builder.done == ["one over 0", "one over 0", "two over 1"]

    _with(tmp_path, work)


def test_what_is_not_used_goes_when_its_lease_ends_and_what_is_in_use_stays(tmp_path: Path) -> None:
    record = tmp_path / "home/saved/steps" / f"{keys(SPEC, IMAGE, {})[1]}.json"

    def expire() -> None:
        read = msgspec.json.decode(record.read_bytes(), type=StepRecord)
        record.write_bytes(msgspec.json.encode(msgspec.structs.replace(read, until_s=1.0)))

    async def work(layers: StepLayers, builder: Builder) -> None:
        start = await layers.layers_for(SPEC, IMAGE, builder.build)
        expire()
        assert await layers._layers.collect() == ()  # pyright: ignore[reportPrivateUsage]
        assert not record.exists()
        assert _names(start) == [["two"], ["one"]]

    _with(tmp_path, work)

    async def after(layers: StepLayers, builder: Builder) -> None:
        gone = await layers._layers.collect()  # pyright: ignore[reportPrivateUsage]
        assert len(gone) == 1  # the first step is another's, too, and leased
        await layers.layers_for(SPEC, IMAGE, builder.build)
        assert builder.done[-1] == "two over 1"

    _with(tmp_path, after)


def test_a_longer_row_is_found_where_a_shorter_is_not_leased_any_more(tmp_path: Path) -> None:
    first = tmp_path / "home/saved/steps" / f"{keys(SPEC, IMAGE, {})[0]}.json"

    async def build(layers: StepLayers, builder: Builder) -> None:
        assert _names(await layers.layers_for(SPEC, IMAGE, builder.build)) == [["two"], ["one"]]
        assert builder.done == ["one over 0", "two over 1"]

    _with(tmp_path, build)
    first.unlink()
    _with(tmp_path, build)


def test_a_lease_is_renewed_by_use(tmp_path: Path) -> None:
    record = tmp_path / "home/saved/steps" / f"{keys(SPEC, IMAGE, {})[1]}.json"

    async def build(layers: StepLayers, builder: Builder) -> None:
        await layers.layers_for(SPEC, IMAGE, builder.build)

    _with(tmp_path, build)
    read = msgspec.json.decode(record.read_bytes(), type=StepRecord)
    record.write_bytes(msgspec.json.encode(msgspec.structs.replace(read, until_s=read.until_s - 0.6 * LEASE_S)))
    _with(tmp_path, build)
    assert msgspec.json.decode(record.read_bytes(), type=StepRecord).until_s >= read.until_s


def _changed(**fields: Any) -> Spec:
    return msgspec.structs.replace(SPEC, **fields)


@pytest.mark.parametrize(
    "spec",
    [
        _changed(env={"B": "2"}),
        _changed(workdir="/elsewhere"),
        _changed(user="8"),
        _changed(steps=(Step("one", (Shell("echo other"),)), TWO)),
        _changed(steps=(Step("one", (Shell("echo one", user="9"),)), TWO)),
        _changed(steps=(Step("one", (Write("/x", b"\0\xff"),)), TWO)),
        _changed(deps="make"),
        _changed(repo="https://example.org/r@1234"),
    ],
)
def test_a_key_changes_with_what_steps_see(spec: Spec) -> None:
    assert set(keys(spec, IMAGE, {})).isdisjoint(keys(SPEC, IMAGE, {}))


def test_a_key_changes_with_the_image_and_the_substrates_terms() -> None:
    before = set(keys(SPEC, IMAGE, {}))
    for field, value in (("digest", "sha256:02"), ("env", {}), ("workdir", "/"), ("user", None)):
        assert before.isdisjoint(keys(SPEC, msgspec.structs.replace(IMAGE, **{field: value}), {}))
    assert before.isdisjoint(keys(SPEC, IMAGE, {"users": "1"}))


@pytest.mark.parametrize(
    "spec",
    [
        _changed(limits=Limits(memory_bytes=1 << 30)),
        _changed(network="open"),
        _changed(build_network="open"),
        _changed(labels={"a": "b"}),
        _changed(boot=(Shell("serve"),)),
        _changed(ready=(Shell("true"),)),
        _changed(steps=(Step("another name", ONE.actions), TWO)),
    ],
)
def test_a_key_does_not_change_with_terms(spec: Spec) -> None:
    assert keys(spec, IMAGE, {}) == keys(SPEC, IMAGE, {})


def test_steps_in_a_session_are_run_in_each_sandbox() -> None:
    assert not is_shared(_changed(steps=(ONE, Step("s", (Shell("cd /opt", session="main"),)))))
    assert not is_shared(_changed(steps=(ONE, Step("s", (Shell("true"),), share=False))))
    assert is_shared(SPEC)
    assert not is_shared(SPEC.unshared())


@pytest.mark.parametrize(
    "fields", [{"secrets": {"KEY": Secret("hidden")}}, {"mounts": (Mount("/etc", "/mnt"),)}, {"devices": ("/dev/fuse",)}]
)
def test_steps_that_see_a_secret_or_the_host_are_run_in_each_sandbox(tmp_path: Path, fields: dict[str, Any]) -> None:
    spec = _changed(**fields)
    assert not is_shared(spec)

    async def work(layers: StepLayers, builder: Builder) -> None:
        assert await layers.layers_for(spec, IMAGE, builder.build) == Start(steps=(ONE, TWO))
        assert builder.done == []

    _with(tmp_path, work)
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file() and b"hidden" in path.read_bytes()] == []
