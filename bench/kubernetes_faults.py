# ruff: noqa: E402 - the tests' own cluster is used, and lies beside this directory

"""What faults of a cluster do to the tail of a pod's start, and how each is told: by a typed error, never as a task's result.

    python bench/kubernetes_faults.py [--paths kubernetes kubernetes+guest] [--faults none slow ...] [--at-once 8]
                                       [--waves 3] [--out FILE]

As root beside a cluster of `make substrates`, with docker-registry: the kubelet is killed and mended. A wave makes many
sandboxes at once, each of which runs a command whose answer is known; the fault comes in the middle of it. Who answers has
answered rightly, or it is a fault of ours: `task_results` counts those, and must be 0.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from a_cluster import Between, admin, forget, own_namespace
from cluster.places import places
from cluster.records import Record
from excise.action import End, Exec
from excise.api import connect
from excise.errors import ExciseError
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec
from excise.storage.fresh import FreshImages
from excise.substrate import Substrate
from excise.substrates.kubernetes import pod

SETTLE_S = 5.0
"""A node goes on ending pods that the API has forgotten, which the next wave must not pay for."""
WAIT_S = 90.0
DOWN_S = 3.0
"""How long a killed kubelet stays away, before it is started again."""
SLOW_S = 0.005
"""For each 64 KiB of an answer."""
CUT_BYTES = 8192
"""Enough for a manifest, and for nothing of a layer: what begins is resumed, and one that goes on slowly gets there."""
MIB = 1 << 20
FILL = "head -c 90000000 /dev/zero > /dev/shm/much"
BIG = "x" * (12 * MIB)
ANSWERED, OUT_OF_MEMORY, WRONG = "answered", "out of memory", "task result"


class Outcome(NamedTuple):
    """Of one create: how it ended, in the words of its error, and when a first command had answered."""

    kind: str
    said: str = ""
    ready_s: float | None = None


class Scene(NamedTuple):
    """A wave's surroundings: what its sandboxes are made from, and what befalls each of them, or all."""

    spec: Spec
    wait_s: float = WAIT_S
    befalls: Callable[[int, Sandbox], Awaitable[None]] | None = None
    meanwhile: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None
    """Told when the first sandbox is ready."""
    fills: bool = False
    works_s: int = 1
    """How long a command takes."""


async def one(substrate: Substrate, number: int, scene: Scene, first: asyncio.Event) -> Outcome:
    """A sandbox, a command that takes its time, its answer."""
    nonce, begun, ready_s = uuid.uuid4().hex, time.perf_counter(), None
    try:
        async with Sandbox(substrate, scene.spec, wait_s=scene.wait_s, ttl_s=300) as box:
            ready_s = time.perf_counter() - begun
            first.set()
            running = asyncio.ensure_future(box.run(Exec(("sh", "-c", f"sleep {scene.works_s}; echo {nonce}; exit 3"))))
            try:
                if scene.befalls is not None and number % 2:
                    await scene.befalls(number, box)
                seen = await running
                if scene.fills and number % 2:
                    if (filled := await box.run(FILL)).end is not End.OUT_OF_MEMORY:
                        return Outcome(WRONG, f"filling it ended as {filled.end.value}", ready_s)
                    # Of the guest's own memory; by exec the process is another, and is killed alone.
                    await box.run(Exec(("true", BIG if "+guest" in substrate.address else "")))
                    return Outcome(OUT_OF_MEMORY, "", ready_s)
            finally:
                running.cancel()
                await asyncio.wait([running])
    except ExciseError as error:
        return Outcome(type(error).__name__, str(error), ready_s)
    right = (seen.end, seen.exit_code, seen.stdout) == (End.EXITED, 3, f"{nonce}\n".encode())
    return Outcome(ANSWERED, "", ready_s) if right else Outcome(WRONG, f"{seen.end.value} {seen.exit_code}", ready_s)


async def wave(substrate: Substrate, at_once: int, scene: Scene) -> list[Outcome]:
    first = asyncio.Event()
    besides = [asyncio.create_task(scene.meanwhile(first))] if scene.meanwhile is not None else []
    found = await asyncio.gather(*(one(substrate, number, scene, first) for number in range(at_once)))
    first.set()  # whether or not one was
    await asyncio.gather(*besides)
    await asyncio.sleep(SETTLE_S)
    return found


# ---- the faults


class Faults:
    """How each is brought about, wave by wave."""

    def __init__(self, namespace: str, fresh: FreshImages) -> None:
        self._namespace = namespace
        self._fresh = fresh
        self.known = {
            "none": self._none,
            "registry": self._registry,
            "slow": self._slow,
            "failing": self._failing,
            "kubelet": self._kubelet,
            "evicted": self._evicted,
            "memory": self._memory,
            "full": self._full,
        }

    @asynccontextmanager
    async def _none(self, number: int) -> AsyncGenerator[Scene]:
        yield Scene(Spec())

    @asynccontextmanager
    async def _registry(self, number: int) -> AsyncGenerator[Scene]:
        """No fault yet: what `slow` and `failing` are to be compared with."""
        yield Scene(Spec(image=await self._fresh.next()))

    @asynccontextmanager
    async def _between(self, delay_s: float, cut: int | None) -> AsyncGenerator[Scene]:
        name = await self._fresh.next()
        host, _, rest = name.partition("/")
        with Between(int(host.rpartition(":")[2])) as proxy:
            proxy.delay_s, proxy.cut_after_bytes = delay_s, cut
            yield Scene(Spec(image=f"127.0.0.1:{proxy.port}/{rest}"))

    def _slow(self, number: int) -> Any:
        return self._between(SLOW_S, None)

    def _failing(self, number: int) -> Any:
        """Every connection breaks off when a layer comes."""
        return self._between(0.0, CUT_BYTES)

    @asynccontextmanager
    async def _kubelet(self, number: int) -> AsyncGenerator[Scene]:
        async def killed(first: asyncio.Event) -> None:
            await first.wait()
            record = Record.read(places().records / "kubelet.json")
            assert record is not None
            assert record.runs()
            os.kill(record.pid, signal.SIGKILL)
            await asyncio.sleep(DOWN_S)
            await mended()

        yield Scene(Spec(), meanwhile=killed)

    @asynccontextmanager
    async def _evicted(self, number: int) -> AsyncGenerator[Scene]:
        """Every second sandbox, while its command runs."""
        async with admin(self._namespace) as api:

            async def evict(_: int, box: Sandbox) -> None:
                name = pod.split_id(box.id)[0]
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                await api.request("POST", api.path("pods", f"{name}/eviction"), what="evict", body=body)

            yield Scene(Spec(), befalls=evict, works_s=6)  # the kubelet takes two

    @asynccontextmanager
    async def _memory(self, number: int) -> AsyncGenerator[Scene]:
        """Every second sandbox fills its memory with what no kill frees, until its first process has none."""
        yield Scene(Spec(limits=Limits(memory_bytes=64 * MIB)), fills=True)

    @asynccontextmanager
    async def _full(self, number: int) -> AsyncGenerator[Scene]:
        """Each takes more than half of a core of the node; who finds no room in time is told so."""
        share = max(0.1, (os.cpu_count() or 1) * 0.3)
        yield Scene(Spec(limits=Limits(cpus=share, memory_bytes=256 * MIB)), wait_s=12.0, works_s=6)


async def mended() -> None:
    """As `make substrates` does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cluster", "up", cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0


# ---- what is told


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Times of those that were ready, and how many ended how."""
    times = sorted(outcome.ready_s for outcome in found if outcome.ready_s is not None)
    said = Counter(f"{outcome.kind}: {outcome.said}"[:600] for outcome in found if outcome.said)
    return {
        "creates": len(found),
        "outcomes": dict(Counter(outcome.kind for outcome in found)),
        "task_results": sum(outcome.kind == WRONG for outcome in found),
        "ready": len(times),
        "create_to_ready_s": {"p50": at(times, 0.5), "p95": at(times, 0.95), "max": at(times, 1.0)},
        "said": dict(said.most_common(5)),
    }


def at(ordered: Sequence[float], level: float) -> float | None:
    """The smallest of them that so many do not exceed."""
    return round(ordered[max(0, -int(-level * len(ordered) // 1) - 1)], 4) if ordered else None


async def measured(given: argparse.Namespace, namespace: str) -> dict[str, Any]:
    fresh = FreshImages("excise/base")
    faults = Faults(namespace, fresh)
    told: dict[str, Any] = {}
    try:
        for path in given.paths:
            for name in given.faults or faults.known:
                found: list[Outcome] = []
                for number in range(given.waves):
                    async with connect(f"{path}?namespace={namespace}") as substrate, faults.known[name](number) as scene:
                        async with Sandbox(substrate):
                            pass  # the watch and the policy, which the first create makes
                        found += await wave(substrate, given.at_once, scene)
                told[f"{path} {name}"] = {**summary(found), "ready_s": sorted(one.ready_s for one in found if one.ready_s)}
                print(path, name, json.dumps(summary(found)), flush=True)
    finally:
        await fresh.close()
        await asyncio.to_thread(forget, "/excise/fresh")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="+", default=["kubernetes", "kubernetes+guest"])
    parser.add_argument("--faults", nargs="+")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with own_namespace() as namespace:
        told = asyncio.run(measured(given, namespace))
    whole = {"at_once": given.at_once, "waves": given.waves, "machine": platform.uname()._asdict(), "faults": told}
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(any(one["task_results"] for one in told.values()))


if __name__ == "__main__":
    main()
