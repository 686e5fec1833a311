"""Who works on states is killed at seeded moments: no state that was taken is lost, no half-made one is handed out.

Kills of client, launcher and guest are in test_killed_at_random; of who pulls, collects, saves and builds steps, in the tests
of those. Here it is the storekeeper, who copies, squashes and proves, and the client of a daemon that outlives it.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from excise.action import Shell
from excise.errors import ExciseError, SandboxLost
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Spec, Step
from excise.storage.store import remove_tree
from excise.substrate import Snapshot
from excise.substrates.docker.container import LABELS
from excise.substrates.namespace import NamespaceSubstrate, depth

T = TypeVar("T")
POINTS = 24
MANY = "mkdir -p /srv/many && cd /srv/many && i=0 && while [ $i -lt 300 ]; do echo $i > $i; i=$((i+1)); done"
COUNT = "cat /srv/number; ls /srv/many | wc -l"


@asynccontextmanager
async def opened(**options: bool) -> AsyncGenerator[NamespaceSubstrate]:
    substrate = NamespaceSubstrate(**options)
    try:
        yield substrate
    finally:
        await substrate.close()


def storekeepers() -> list[int]:
    """Our children that work on trees."""
    found: list[int] = []
    for thread in Path("/proc/self/task").glob("*/children"):
        for pid in thread.read_text().split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked
            if b"storage.trees.process" in words:
                found.append(int(pid))
    return found


class Killer:
    """Kills the storekeeper so long after it was told to, if there is one by then; in a thread, since moments are short."""

    def __init__(self, seed: int, latest_s: float = 0.0) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - the same moments each time
        self._latest_s = latest_s
        self.killed = 0

    async def aim(self, work: Awaitable[T]) -> T:
        """By how long `work` takes on this machine, undisturbed: most kills are to meet it, and some to come too late."""
        began_s = time.monotonic()
        done = await work
        self._latest_s = 1.5 * (time.monotonic() - began_s)
        return done

    async def during(self, work: asyncio.Task[Snapshot] | asyncio.Task[None]) -> Snapshot | ExciseError | None:
        """What came of `work`."""
        thread = threading.Thread(target=self._kill, args=(self._chance.uniform(0, self._latest_s),))
        thread.start()
        try:
            return await work
        except ExciseError as error:
            return error
        finally:
            await asyncio.to_thread(thread.join)

    def _kill(self, delay_s: float) -> None:
        time.sleep(delay_s)
        for pid in storekeepers():
            os.kill(pid, signal.SIGKILL)
            self.killed += 1


async def numbered(box: Sandbox) -> int:
    """The number that was written before, with all that was written beside it."""
    seen = await box.run(COUNT)
    number, files = seen.stdout.split()
    assert files == b"300", "half of a state was handed out"
    return int(number)


def test_the_storekeeper_is_killed_while_it_copies(runs_here: Callable[[str], None]) -> None:
    """The sandbox goes on, thawed; its snapshot is whole or none; earlier ones are what they were."""
    runs_here("namespace")
    killer, taken, failed = Killer(20263), dict[int, Snapshot](), 0

    async def scenario() -> None:
        nonlocal failed
        async with opened() as substrate, Sandbox(substrate, timeout_s=20) as box:
            assert (await box.run(MANY, session="main")).ok
            await substrate.discard(await box.snapshot())  # which starts the storekeeper
            await substrate.discard(await killer.aim(box.snapshot()))
            for number in range(POINTS):
                assert (await box.run(f"echo {number} > /srv/number; echo {number}", session="main")).text == f"{number}\n"
                made = await killer.during(asyncio.create_task(box.snapshot()))
                if isinstance(made, Snapshot):
                    taken[number] = made
                else:
                    failed += 1
                assert await numbered(box) == number, "the sandbox is not as it was"
            for number, snapshot in taken.items():
                async with Sandbox(substrate, snapshot) as child:
                    assert await numbered(child) == number
                await substrate.discard(snapshot)
            assert not {one.id for one in taken.values()} & {one.id for one in await substrate.snapshots()}

    asyncio.run(scenario())
    assert failed >= 2, "the kills missed what they were aimed at"
    assert len(taken) >= 2


def test_the_storekeeper_is_killed_while_it_squashes(runs_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on beside the sandbox, which hears nothing of it: every snapshot is what it was, squashed or not."""
    runs_here("namespace")
    monkeypatch.setattr(depth, "MOST_LAYERS", 3)
    killer = Killer(20264, 0.1)

    async def scenario() -> None:
        async with opened() as substrate, Sandbox(substrate, timeout_s=20) as box:
            assert (await box.run(MANY)).ok
            taken: list[Snapshot] = []
            for number in range(POINTS):
                await box.write("/srv/number", f"{number}\n")
                taken.append(await box.snapshot())
                await killer.during(asyncio.create_task(asyncio.sleep(0)))
            for number, snapshot in enumerate(taken):
                await box.reset(snapshot)
                assert await numbered(box) == number
                await substrate.discard(snapshot)

    asyncio.run(scenario())
    assert killer.killed >= POINTS // 4, "the kills missed what they were aimed at"


def test_the_storekeeper_is_killed_while_it_proves(runs_here: Callable[[str], None]) -> None:
    """A reset that could not be proved is no reset: the sandbox is lost, never handed out."""
    runs_here("namespace")
    killer, proved, lost = Killer(20265), 0, 0

    async def scenario() -> None:
        nonlocal proved, lost
        async with opened(prove=True) as substrate:
            async with Sandbox(substrate) as first:
                assert (await first.run(f"{MANY}; echo 7 > /srv/number")).ok
                snapshot = await first.snapshot()
                await first.reset(snapshot)
                await killer.aim(first.reset(snapshot))
            for _ in range(POINTS):
                async with Sandbox(substrate, snapshot, timeout_s=20) as box:
                    await box.write("/srv/number", "8")
                    outcome = await killer.during(asyncio.create_task(box.reset(snapshot)))
                    if outcome is None:
                        assert await numbered(box) == 7
                        proved += 1
                    else:
                        with pytest.raises(SandboxLost):
                            await box.run("true")
                        lost += 1

    asyncio.run(scenario())
    assert proved >= 2
    assert lost >= 2, "the kills missed what they were aimed at"


# ---- damage


def test_a_flipped_byte_in_a_saved_layer_is_found_by_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_here: Callable[[str], None]
) -> None:
    runs_here("namespace")
    home = tmp_path / "home"
    monkeypatch.setenv("EXCISE_HOME", str(home))
    spec = Spec(image="host", steps=(Step("one", (Shell("mkdir -p /srv && echo precious > /srv/file"),)),))

    async def scenario() -> None:
        async with opened(prove=True) as substrate, Sandbox(substrate, spec) as box:
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            (file,) = home.glob("saved/layers/sha256-*/tree/srv/file")
            file.write_bytes(b"precioux\n")
            with pytest.raises(SandboxLost, match=file.parents[2].name.removeprefix("sha256-")[:12]):
                await box.reset(snapshot)

    try:
        asyncio.run(scenario())
    finally:
        remove_tree(home)


# ---- a daemon outlives its client


_CLIENT = """
import asyncio, sys
from excise.registry import make
from excise.sandbox import Sandbox

async def main():
    substrate = make(sys.argv[1])
    async with Sandbox(substrate, ttl_s=3, labels={"crash": sys.argv[2]}) as box:
        print("open", flush=True)
        for number in range(1000):
            await box.write("/srv/number", str(number))
            await box.reset(await box.snapshot())

asyncio.run(main())
"""


def docker(*words: str) -> list[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True, timeout=60).stdout.split()


def left_of(nonce: str) -> list[str]:
    """Containers and images whose labels say so."""
    found = [("container", one) for one in docker("ps", "-aq", "--filter", f"label={LABELS}")]
    found += [("image", one) for one in docker("images", "-aq", "--filter", f"label={LABELS}")]
    left: list[str] = []
    for kind, one in dict.fromkeys(found):
        seen = subprocess.run(["docker", kind, "inspect", one], capture_output=True, text=True, check=False, timeout=60).stdout
        if any(nonce in (entry["Config"]["Labels"] or {}).get(LABELS, "") for entry in json.loads(seen)):
            left.append(f"{kind} {one}")
    return left


def test_a_killed_clients_snapshots_of_containers_go_with_their_lease(runs_here: Callable[[str], None]) -> None:
    address = "docker+guest"
    runs_here(address)
    chance, nonces = random.Random(20266), [uuid.uuid4().hex for _ in range(3)]  # noqa: S311 - the same moments each time
    for nonce in nonces:
        with subprocess.Popen([sys.executable, "-c", _CLIENT, address, nonce], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"open\n"
            time.sleep(chance.uniform(0.1, 1.2))  # the seeded moment
            client.kill()
    assert all(left_of(nonce) for nonce in nonces), "the kills missed what they were aimed at"

    async def collected() -> None:
        substrate = make(address)
        try:
            await asyncio.sleep(3.5)  # until the leases' end
            await substrate.collect()
        finally:
            await substrate.close()

    asyncio.run(collected())
    assert [left for nonce in nonces for left in left_of(nonce)] == []
