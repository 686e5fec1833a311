"""Pools over sandboxes that are real: terms at the claim, a clean return, and nothing left of a client that was killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from excise.action import End, Shell
from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec, Stage, Step
from excise.substrate import Substrate
from excise.substrates.pool import Pool

STEPS = (
    Step("repo", (Shell("echo cloned > repo"),), Stage.REPO),
    Step("deps", (Shell("echo installed > deps"),), Stage.DEPS),
)
WARM = Spec(image="excise/base", steps=STEPS)


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


async def with_pool(address: str, body: Callable[[Pool], object], **options: object) -> None:
    pool = Pool(address, **{"policy": "none", "pressure": False, **options})  # pyright: ignore
    try:
        await body(pool)  # pyright: ignore
    finally:
        await pool.close()


def test_a_warm_claim_has_its_own_limits_and_secrets_and_its_files() -> None:
    async def body(pool: Pool) -> None:
        adopts = (await pool.probe()).adopts
        if not {"pids", "secrets"} <= adopts:
            pytest.skip("limits are not enforced here")
        await pool.fill(WARM, 2)
        wanted = msgspec.structs.replace(WARM, limits=Limits(pids=16), secrets={"TOKEN": Secret("hush")})
        async with Sandbox(pool, wanted) as box:
            assert await box.read("deps") == b"installed\n"
            assert (await box.run('printf "$TOKEN"')).stdout == b"hush"
            seen = await box.run("for i in $(seq 64); do sleep 5 & done; wait; echo survived")
            assert seen.end is End.OUT_OF_PIDS
        assert pool.figures().hits["deps"] == 1
        assert pool.figures().misses == 0

    asyncio.run(with_pool("namespace", body))


@pytest.mark.parametrize("address", ["namespace", "namespace?prove=1"])
def test_a_used_one_comes_back_clean(address: str) -> None:
    async def body(pool: Pool) -> None:
        await pool.fill(WARM)
        seen: set[str] = set()
        for number in range(4):
            async with Sandbox(pool, WARM) as box:
                seen.add(box.id)
                assert await box.read("deps") == b"installed\n"
                assert not (await box.run("test -e left || test -e /tmp/left || pgrep sleep")).ok
                await box.run(f"echo {number} > left; rm deps; touch /tmp/left; sleep 1000 &")
            while sum(pool.figures().idle.values()) < 1:
                assert pool.figures().quarantine == ()
                assert pool.figures().reused > number or pool._returning or pool._stock.places.count, "it did not come back"
                await asyncio.sleep(0.01)
        figures = pool.figures()
        assert (len(seen), figures.reused, figures.hits["deps"]) == (1, 4, 4)
        assert figures.quarantine == ()

    asyncio.run(with_pool(address, body, reuse="reset"))


def test_a_guest_that_is_killed_on_the_shelf_is_not_handed_out() -> None:
    async def body(pool: Pool) -> None:
        await pool.fill(WARM, 2)
        newest = list(pool._stock.shelf)[-1].payload.handle
        assert newest is not None
        newest.link.fail("killed by the test")  # pyright: ignore
        async with Sandbox(pool, WARM) as box:
            assert box.id != newest.id
            assert await box.read("deps") == b"installed\n"
        assert pool.figures().dead == 1

    asyncio.run(with_pool("namespace", body, reuse="never"))


def test_many_at_once_on_a_small_pool() -> None:
    async def body(pool: Pool) -> None:
        async def rollout(number: int) -> bool:
            async with Sandbox(pool, WARM, wait_s=100) as box:
                await box.write("mine", str(number))
                return (await box.run("cat mine deps")).stdout == f"{number}installed\n".encode()

        assert all(await asyncio.gather(*(rollout(number) for number in range(24))))
        assert pool.figures().count <= 4

    asyncio.run(with_pool("namespace", body, count=4, policy="demand"))


CLIENT = """
import asyncio, sys
from excise.substrates.pool import Pool
from excise.sandbox import Sandbox
from excise.spec import Spec

async def main():
    pool = Pool(sys.argv[1], lease_s=3.0, pressure=False, policy="none")
    spec = Spec(image="excise/base")
    await pool.fill(spec, 2)
    async with Sandbox(pool, spec, ttl_s=3.0):
        templates = [entry.payload.snapshot.id for entry in pool._stock.shelf if entry.template]
        print("ready", pool._stock.labels["excise-pool"], *templates, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("address", ["namespace", "docker"])
def test_nothing_is_left_of_a_client_that_was_killed(address: str, runs_here: Callable[[str], None], tmp_path: Path) -> None:
    runs_here(address)
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    with subprocess.Popen([sys.executable, str(script), address], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        said = client.stdout.readline().split()
        os.kill(client.pid, signal.SIGKILL)
    assert said[0] == "ready"
    assert len(said) == 3

    async def left(source: Substrate) -> set[str]:
        return set(said[2:]) & {one.id for one in await source.snapshots()}

    async def look() -> None:
        async with connect(address) as source:
            if not (await source.probe()).attach:
                await source.collect()
                return
            while await source.list({"excise-pool": said[1]}) or await left(source):
                await asyncio.sleep(0.2)  # until their leases have run out; pytest's own timeout ends it
                await source.collect()

    asyncio.run(look())
