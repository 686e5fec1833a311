"""Saved snapshots: leased, shared, verified; and whole, whenever a process that saves or collects is killed."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage.saved.snapshots import SavedSnapshot, SavedSnapshots
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import SessionState

from .overlays import opened

IMAGE = {"image": "host", "image_digest": "sha256:00"}


def _with(home: Path, work: Callable[[SavedSnapshots], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        async with Storekeeper() as keeper, asyncio.timeout(60):
            await work(SavedSnapshots(keeper, home, **more))

    asyncio.run(main())


def _tree(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


async def _save(store: SavedSnapshots, tree: Path, *below: str, lease_s: float = 60, **more: Any) -> SavedSnapshot:
    with opened(tree) as (top,):
        return await store.save([top], below, lease_s=lease_s, **IMAGE, **more)


def _layers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "saved/layers").iterdir())


def test_a_snapshot_is_saved_listed_used_and_deleted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first, second = _tree(tmp_path / "first", a="1"), _tree(tmp_path / "second", b="2")
    session = SessionState(name="main", cwd="/work", env={"A": "1"})

    async def work(store: SavedSnapshots) -> None:
        one = await _save(store, first)
        two = await _save(store, second, *one.layers, parent=one.id, sessions=(session,), labels={"k": "v"})
        assert [each.id for each in store.list()] == [one.id, two.id]
        assert (two.parent, two.sessions, two.labels) == (one.id, (session,), {"k": "v"})
        used = store.open(two.id)
        with used.pin:
            assert [sorted(path.name for path in each.iterdir()) for each in used.paths] == [["b"], ["a"]]
            store.delete(two.id)
            store.delete(one.id)
            assert await store.layers.collect() == ()  # in use
            assert (used.paths[0] / "b").read_text() == "2"
        assert len(await store.layers.collect()) == 2
        assert _layers(home) == []
        with pytest.raises(SpecError, match="was deleted, or its lease ended"):
            store.open(two.id)

    _with(home, work)


def test_equal_layers_are_there_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    trees = [_tree(tmp_path / f"{number}", a="same") for number in range(8)]

    async def work(store: SavedSnapshots) -> None:
        made = await asyncio.gather(*(_save(store, tree) for tree in trees))
        assert len({one.layers for one in made}) == 1
        assert len(_layers(home)) == 1

    _with(home, work)


def test_a_lease_ends_whoever_lives_and_is_renewed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    short, long = _tree(tmp_path / "short", a="1"), _tree(tmp_path / "long", b="2")

    async def work(store: SavedSnapshots) -> None:
        over = await _save(store, short, lease_s=-1)
        kept = await _save(store, long, lease_s=30)
        assert [one.id for one in store.list()] == [kept.id]
        with pytest.raises(SpecError):
            store.renew(over.id, 60)
        assert store.renew(kept.id, 3600).until_s > time.time() + 3000
        assert await store.layers.collect() == over.layers
        assert store.list()[0].until_s > time.time() + 3000
        assert len(list((home / "saved/snapshots").iterdir())) == 1

    _with(home, work)


def test_a_corrupted_layer_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    base, top = _tree(tmp_path / "base", a="1"), _tree(tmp_path / "top", b="2")

    async def work(store: SavedSnapshots) -> None:
        one = await _save(store, base)
        two = await _save(store, top, *one.layers)
        await store.verify(two.id)
        store.layers.path(one.layers[0]).joinpath("a").write_text("2")
        with pytest.raises(SubstrateError, match=f"saved layer {one.layers[0]} is corrupted"):
            await store.verify(two.id)
        store.layers.path(two.layers[0]).with_name("layer.json").write_text("{")
        count, wrong = await store.layers.corrupted()
        assert count == 2
        assert sorted(line.split()[2] for line in wrong) == sorted(two.layers)

    _with(home, work)


def test_more_than_the_store_may_take_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    large = _tree(tmp_path / "large")
    (large / "file").write_bytes(os.urandom(200_000))

    async def work(store: SavedSnapshots) -> None:
        small = await _save(store, _tree(tmp_path / "small", a="1"))
        with pytest.raises(SpecError, match="saved layers may take 100,000 bytes together"):
            await _save(store, large)
        assert [one.id for one in store.list()] == [small.id]
        assert len(_layers(home)) == 1

    _with(home, work, most_bytes=100_000)


def test_a_snapshot_over_a_layer_that_is_gone_is_refused(tmp_path: Path) -> None:
    async def work(store: SavedSnapshots) -> None:
        with pytest.raises(SubstrateError, match="is gone"):
            await _save(store, _tree(tmp_path / "tree"), "sha256:" + "0" * 64)
        with pytest.raises(SpecError, match="no snapshot's id"):
            store.open("../../etc/passwd")

    _with(tmp_path / "home", work)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_said_with_its_remedy_and_leaves_the_store_whole(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    large = _tree(tmp_path / "large")
    (large / "file").write_bytes(os.urandom(1 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "excise-small", home], check=True)

    async def work(store: SavedSnapshots) -> None:
        small = await _save(store, _tree(tmp_path / "small", a="1"))
        with pytest.raises(SubstrateError, match="the disk is full: free some space"):
            await _save(store, large)
        assert len(_layers(home)) == 1
        await store.verify(small.id)

    try:
        _with(home, work)
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_storekeeper_killed_while_it_saves_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree = _tree(tmp_path / "tree", **{f"f{number}": "x" for number in range(3000)})

    async def work(store: SavedSnapshots) -> None:
        asked = asyncio.ensure_future(_save(store, tree))
        while not list((home / "saved/layers").glob(".making-*/tree/f0")):
            await asyncio.sleep(0)
        (pid,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(SubstrateError, match="died: try again"):
            await asked
        assert _layers(home) == []
        assert len((await _save(store, tree)).layers) == 1

    _with(home, work)


def test_a_cancelled_save_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree = _tree(tmp_path / "tree", **{f"f{number}": "x" for number in range(2000)})

    async def work(store: SavedSnapshots) -> None:
        asked = asyncio.ensure_future(_save(store, tree))
        while not _layers(home):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert _layers(home) == []
        assert store.list() == ()

    _with(home, work)


_SAVES_AND_COLLECTS = """
import asyncio, os, sys
from pathlib import Path
from excise.storage.saved.snapshots import SavedSnapshots
from excise.storage.trees.storekeeper import Storekeeper
home, place, seed = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
async def main():
    async with Storekeeper() as keeper:
        store = SavedSnapshots(keeper, home)
        for number in range(1000):
            tree = place / f"{seed}-{number}"
            tree.mkdir()
            for name in range(20):
                (tree / f"{name}").write_text(f"{seed} {number} {name}")
            top = os.open(tree, os.O_RDONLY)
            made = await store.save([top], [], image="host", image_digest="sha256:00", lease_s=3600)
            os.close(top)
            print("saved", made.id, flush=True)
            if number % 3 == 2:
                print("deleting", made.id, flush=True)
                store.delete(made.id)
                await store.layers.collect()
asyncio.run(main())
"""


def test_killed_while_it_saves_or_collects_nothing_is_lost_and_nothing_half_made_is_served(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    place.mkdir()
    chance = random.Random(7)  # noqa: S311 - for moments, not for secrets
    saved: set[str] = set()
    deleted: set[str] = set()
    for seed in range(8):
        command = [sys.executable, "-c", _SAVES_AND_COLLECTS, home, place, str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(chance.randrange(1, 8))]
            time.sleep(chance.uniform(0, 0.05))  # the seeded moment: somewhere in the next save or collection
            process.send_signal(signal.SIGKILL)
            for line in (*said, *process.stdout):
                verb, name = line.split()
                (saved if verb == "saved" else deleted).add(name)

    async def work(store: SavedSnapshots) -> None:
        there = {one.id for one in store.list()}
        assert saved - deleted <= there
        await store.layers.collect()
        for name in there:
            await store.verify(name)
        held = {layer.digest for layer in store.layers.held()}
        assert held == {digest for one in store.list() for digest in one.layers}
        assert [name for name in _layers(home) if name.startswith(".")] == []

    _with(home, work)
    assert saved
