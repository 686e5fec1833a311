"""Guests, launchers, clients, containers and daemons of a pool, killed or hanging: typed errors, nothing is left."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from excise.action import Shell
from excise.errors import CreateError, SandboxLost, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec, Stage, Step
from excise.substrates.pool import Pool

KILLS = 30
WORKERS = 3
WARM = Spec(
    image="excise/base",
    steps=(Step("repo", (Shell("echo cloned > repo"),), Stage.REPO), Step("deps", (Shell("echo installed > deps"),))),
)
RANDOMLY = Path(__file__).parents[1] / "isolation" / "killed_at_random.py"


@asynccontextmanager
async def pool_of(address: str, **options: Any) -> AsyncGenerator[Pool]:
    pool = Pool(address, **{"policy": "none", "pressure": False, **options})
    try:
        yield pool
    finally:
        async with asyncio.timeout(60):
            await pool.close()
    assert pool.figures().count == 0


# ---- namespaces


async def rollout(pool: Pool, seen: Counter[str]) -> None:
    """What a policy sees is right, or the sandbox is lost; a claim is answered, or refused by a substrate's error."""
    try:
        async with Sandbox(pool, WARM, wait_s=30, timeout_s=20) as box:
            clean = await box.run("cat repo deps; ls; ls -A /tmp; pgrep sleep")
            used = await box.run("rm deps; touch left /tmp/left; sleep 1000 & echo used")
        seen["right" if (clean.stdout, used.stdout) == (b"cloned\ninstalled\ndeps\nrepo\n", b"used\n") else "wrong"] += 1
        if seen["wrong"]:
            seen[clean.text + used.text] += 1
    except SandboxLost:
        seen["lost"] += 1
    except SubstrateError:
        seen["refused"] += 1


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ended while we looked
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def launchers() -> list[int]:
    return [pid for pid in children(os.getpid()) if children(pid)]


@pytest.mark.parametrize(("victim", "reuse", "seed"), [("guest", "reset", 7), ("guest", "never", 8), ("launcher", "reset", 9)])
def test_killed_at_random_under_load_nothing_is_wrong_and_nothing_is_left(
    victim: str, reuse: str, seed: int, runs_here: Callable[[str], None]
) -> None:
    runs_here("namespace")
    chance = random.Random(seed)  # noqa: S311 - the same moments each time
    seen: Counter[str] = Counter()

    async def load(pool: Pool, over: asyncio.Event) -> None:
        while not over.is_set():
            await rollout(pool, seen)

    async def kill(over: asyncio.Event) -> None:
        for _ in range(KILLS if victim == "guest" else KILLS // 3):
            await asyncio.sleep(chance.uniform(0.0, 0.08))
            above = launchers()
            found = above if victim == "launcher" else [guest for one in above for guest in children(one)]
            if found:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
        over.set()

    async def check() -> None:
        async with pool_of("namespace", count=8, policy="fixed", keep=3, reuse=reuse) as pool:
            over = asyncio.Event()
            async with asyncio.timeout(100):
                await asyncio.gather(kill(over), *(load(pool, over) for _ in range(WORKERS)))
                after: Counter[str] = Counter()
                while not after["right"]:  # what was killed is made again, and nobody has to ask for that
                    await rollout(pool, after)
                assert after["wrong"] == 0
        assert (seen["wrong"], seen["right"] > 0) == (0, True), seen
        assert seen["lost"] + seen["refused"] + pool.figures().dead > 0, "the kills missed"

    asyncio.run(check())
    assert [pid for pid in children(os.getpid()) if Path(f"/proc/{pid}/exe").exists()] == []


def test_a_guest_killed_on_the_shelf_costs_a_claim_nothing_but_the_next(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")

    async def check() -> None:
        async with pool_of("namespace") as pool:
            await pool.fill(WARM, 3)
            (launcher,) = launchers()
            for guest in children(launcher):
                os.kill(guest, signal.SIGKILL)
            begun_s = asyncio.get_running_loop().time()
            async with Sandbox(pool, WARM, wait_s=30) as box:
                assert await box.read("deps") == b"installed\n"
            assert asyncio.get_running_loop().time() - begun_s < 30
            assert pool.figures().dead == 3

    asyncio.run(check())


def test_a_client_killed_at_random_moments_leaves_nothing_after_gc(runs_here: Callable[[str], None]) -> None:
    """Processes and mounts are gone within a second without it; control groups after it."""
    runs_here("namespace")
    words = [
        sys.executable,
        str(RANDOMLY),
        "client",
        "60",
        "20263",
        "pool:namespace?pool.policy=fixed&pool.keep=2&pool.reuse=reset",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["late"], seen["wrong"], seen["groups_left"]) == ([], [], [])


# ---- containers


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("address", ["docker", "docker+guest"])
def test_containers_removed_behind_the_pools_back(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)

    async def check() -> None:
        async with pool_of(address, reuse="never") as pool:
            await pool.fill(Spec(), 2)
            first, second = [entry.payload.handle for entry in pool._stock.shelf if entry.payload.handle is not None]
            await asyncio.to_thread(docker, "rm", "--force", second.id)
            async with Sandbox(pool, Spec(), wait_s=60) as box:
                assert box.id == first.id
                await asyncio.to_thread(docker, "rm", "--force", box.id)
                with pytest.raises(SandboxLost):
                    await box.run("true")
            assert (pool.figures().dead, pool.figures().hits["image"]) == (1, 1)
            async with Sandbox(pool, Spec(), wait_s=60) as box:
                assert (await box.run("echo hi")).stdout == b"hi\n"

    asyncio.run(check())


class Between:
    """A socket before the daemon's own, that can stop to answer: what was said stays unheard until it goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Between":
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection("/var/run/docker.sock")
        self._writers += [ours, writer]
        for work in (self._pump(reader, ours), self._pump(theirs, writer)):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self.goes_on.wait()
                target.write(data)
                await target.drain()
            target.write_eof()


@pytest.mark.parametrize("address", ["docker"])
def test_a_daemon_that_hangs_is_told_by_the_deadline_and_claims_go_on_after_it(
    address: str, runs_here: Callable[[str], None], tmp_path: Path
) -> None:
    runs_here(address)

    async def check() -> None:
        socket = tmp_path / "daemon.sock"
        async with Between(socket) as between, pool_of(f"{address}?host=unix://{socket}", reuse="never") as pool:
            await pool.fill(Spec(), 1)
            async with Sandbox(pool, Spec(), wait_s=60) as box:
                await box.write("mine", b"kept")
                between.goes_on.clear()
                await asyncio.gather(*(late(pool, wait_s) for wait_s in (1.0, 4.0)))
                between.goes_on.set()
                assert await box.read("mine") == b"kept"
                async with Sandbox(pool, Spec(), wait_s=60) as other:
                    assert (await other.run("echo hi")).stdout == b"hi\n"

    asyncio.run(check())


async def late(pool: Pool, wait_s: float) -> None:
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises((CreateError, SubstrateError)):
        async with Sandbox(pool, Spec(), wait_s=wait_s):
            pass
    assert asyncio.get_running_loop().time() - begun_s < wait_s + 4  # what it gives up has two seconds to be given up


def test_a_daemon_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def check() -> None:
        pool = Pool(f"docker?host=unix://{tmp_path}/nobody.sock", policy="none", pressure=False)
        try:
            with pytest.raises(SubstrateError, match=r"nobody\.sock"):
                async with Sandbox(pool, Spec(), wait_s=20):
                    pass
        finally:
            await pool.close()

    asyncio.run(check())
