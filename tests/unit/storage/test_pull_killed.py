"""Killed at any moment of a pull or a collection: nothing half-made is served, nothing that was there is lost."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from excise.storage import collect, store
from excise.storage.image import resolve
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci import pull
from oci_image import FORMATS, build, entry, tar
from strange_registry import Handler, Registry, serving

KILLS = 12
SEED = 20261115


@pytest.fixture
def registry(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    assert not home.exists()
    with serving() as made:
        yield made


def put(registry: Registry, number: int) -> str:
    """An image of three layers, two of them its own."""
    shared = tar(entry("shared", b"s" * 300_000))
    own = (tar(*(entry(f"{number}/{part}/{name}", b"x" * 5000) for name in range(40))) for part in range(2))
    return registry.put(build([shared, *own], compress=FORMATS[2:]), str(number))


def check_whole() -> None:
    """Every layer and every image that is there is what it was made from."""

    async def main() -> None:
        layers = LayerStore()
        async with Workers(1) as workers:
            for layer in layers.held():
                await layers.verify(layer.digest, workers)
        for image in store.found().values():
            assert all(layers.get(digest) is not None for digest in image.layers)
            assert len(list(image.root.rglob("*"))) >= 80

    asyncio.run(main())


def excise(*arguments: str) -> "subprocess.Popen[bytes]":
    program = "from excise.cli import main; raise SystemExit(main())"
    argv = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_after(child: "subprocess.Popen[bytes]", delay_s: float) -> None:
    try:
        child.wait(delay_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    child.wait()


class Killer:
    """A registry's misbehaviour: the process that pulls is killed in the midst of a blob."""

    def __init__(self, blob: int, byte: int) -> None:
        self._left, self._byte = blob, byte
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, handler: Handler, data: bytes, at: int) -> bool:
        self._left -= 1
        if self._left != 0 or self.child is None:
            return False
        handler.begin(200, data, at, at + self._byte)
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        return True


def test_killed_while_it_pulls(registry: Registry, home: Path) -> None:
    """At a seeded blob and byte of it, so that each run dies in another part of the work."""
    chance = random.Random(SEED)  # noqa: S311 - moments, not secrets
    kept = put(registry, 1000)
    asyncio.run(pull.pull([kept]))
    killed = 0
    for number in range(KILLS):
        name = put(registry, number)
        registry.misbehave = killer = Killer(chance.randrange(1, 4), chance.randrange(1, 200_000))
        killer.child = excise("image", "pull", name)
        killer.child.wait(60)
        killed += killer.child.returncode == -signal.SIGKILL
        registry.misbehave = lambda *_: False
        check_whole()
        assert (asyncio.run(resolve(kept)).root / "shared").exists()
        if number % 3 == 0:
            (one,) = asyncio.run(pull.pull([name]))
            assert one.error is None
    assert killed == KILLS
    asyncio.run(collect.tidy(None))
    check_whole()
    assert not [*home.glob("layers/.*"), *home.glob("images/.*")]


def test_killed_while_it_collects(registry: Registry, home: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311 - moments, not secrets
    kept = put(registry, 1000)
    for number in range(KILLS):
        asyncio.run(pull.pull([kept, put(registry, number)]))
        os.utime(asyncio.run(resolve(kept)).root.parent / "image.json")
        kill_after(excise("image", "gc", "--keep", "1M"), chance.uniform(0.2, 0.9))
        check_whole()
        assert (asyncio.run(resolve(kept)).root / "shared").exists()
    asyncio.run(collect.tidy(None))
    check_whole()
    assert not [*home.glob("layers/.*"), *home.glob("images/.*")]
