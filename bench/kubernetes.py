"""What the substrate `kubernetes` adds to the bare API, and whether 32 creates at once wait for us or for the cluster.

    python bench/kubernetes.py [--namespace NAME] [--rounds 30] [--at-once 32] [--waves 4] [--out FILE]

One round makes a pod by bare requests and one watch, and the same pod by the substrate, in turn and in changing order: until
its container runs, and until a first `true` has answered. A wave makes many at once, one way and then the other.
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import random
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, TCPConnector, WSMsgType

from excise.action import Exec
from excise.spec import Spec
from excise.substrates.kubernetes import options, pod
from excise.substrates.kubernetes.credentials import Credentials
from excise.substrates.kubernetes.kubeconfig import resolve
from excise.substrates.kubernetes.substrate import KubernetesSubstrate

DEADLINE_S = 120.0
SETTLE_S = 12.0
"""A node goes on ending pods that the API has forgotten, which the next wave must not pay for."""
Made = tuple[float, float, Callable[[], Awaitable[object]]]
"""Seconds until the container ran, and until `true` had answered; and how to remove it."""


class Bare:
    """The API without a library: a POST, one watch for all, a WebSocket for `true`, a DELETE."""

    def __init__(self, namespace: str | None) -> None:
        self._access = resolve()
        self._namespace = namespace or self._access.namespace
        self._pods = f"{self._access.server}/api/v1/namespaces/{self._namespace}/pods"
        self._client = uuid.uuid4().hex
        self._running: dict[str, asyncio.Future[None]] = {}

    async def open(self) -> None:
        shown = await Credentials(self._access).current()
        self._session = ClientSession(connector=TCPConnector(limit=0, ssl=shown.tls or False), headers=list(shown.headers))
        selector = {"labelSelector": f"{pod.CLIENT}={self._client}"}
        async with self._session.get(self._pods, params=selector) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        params = {**selector, "watch": "1", "resourceVersion": version}
        self._watch = await self._session.get(self._pods, params=params, timeout=None)  # pyright: ignore[reportArgumentType]
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        held = b""
        async for piece in self._watch.content.iter_any():
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                thing = json.loads(line)["object"]
                found = thing.get("status", {}).get("containerStatuses") or []
                waiting = self._running.get(thing["metadata"]["name"])
                if found and "running" in found[0]["state"] and waiting is not None and not waiting.done():
                    waiting.set_result(None)

    async def make(self) -> Made:
        manifest = pod.manifest(
            Spec(), options.Options(), labels={}, lease_s=600, request_id=uuid.uuid4().hex, client=self._client, made_by=""
        )
        name = manifest["metadata"]["name"]
        running = self._running[name] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        async with self._session.post(self._pods, json=manifest) as answer:
            answer.raise_for_status()
        await running
        started_s = time.perf_counter() - begun
        await self._true(name)
        return started_s, time.perf_counter() - begun, lambda: self._remove(name)

    async def _true(self, name: str) -> None:
        params = {"container": pod.CONTAINER, "command": "true", "stdout": "1"}
        async with self._session.ws_connect(
            f"{self._pods}/{name}/exec", params=params, protocols=("v5.channel.k8s.io",)
        ) as socket:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == b"\x03":
                    return

    async def _remove(self, name: str) -> None:
        async with self._session.delete(f"{self._pods}/{name}", json={"gracePeriodSeconds": 0}) as answer:
            answer.raise_for_status()
        del self._running[name]

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])
        self._watch.close()
        await self._session.close()


class Ours:
    """The same by the substrate."""

    def __init__(self, namespace: str | None) -> None:
        self._substrate = KubernetesSubstrate(namespace=namespace)

    async def open(self) -> None:
        """The watch and the policy, as the first create would."""
        await (await self.make())[2]()

    async def make(self) -> Made:
        begun = time.perf_counter()
        handle = await self._substrate.create(
            Spec(), deadline_s=DEADLINE_S, lease_s=600, labels={}, request_id=uuid.uuid4().hex
        )
        started_s = time.perf_counter() - begun
        await handle.run(Exec(("true",)))
        return started_s, time.perf_counter() - begun, handle.close

    async def close(self) -> None:
        await self._substrate.close()


Way = Bare | Ours


async def one(way: Way) -> list[float]:
    started_s, answered_s, remove = await way.make()
    await remove()
    return [started_s, answered_s]


async def wave(way: Way, at_once: int) -> dict[str, Any]:
    """Many at once: how long until all ran, and how much of that this very process worked."""
    profile = cProfile.Profile()
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    profile.enable()
    made = await asyncio.gather(*(way.make() for _ in range(at_once)))
    profile.disable()
    wall_s, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.gather(*(remove() for _, _, remove in made))
    await asyncio.sleep(SETTLE_S)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": wall_s,
        "started_s": sorted(started_s for started_s, _, _ in made),
        "cpu_s": cpu_s,
        "cpu_share": cpu_s / wall_s,
        "most_time": _most(profile),
    }


def _most(profile: cProfile.Profile, count: int = 8) -> list[str]:
    """Where our own time went, waiting included: `select.epoll.poll` on top says that we waited for the cluster."""
    found: list[Any] = sorted(pstats.Stats(profile).stats.items(), key=lambda item: -item[1][2])  # pyright: ignore
    return [f"{stats[2]:.3f} s {Path(place[0]).name}:{place[1]} {place[2]}" for place, stats in found[:count]]


def quantiles(ratios: list[float]) -> dict[str, float]:
    """The median of ratios of the same round, with the interval that resampling gives it."""
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {"p50": statistics.median(ratios), "low": medians[50], "high": medians[-51]}


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    ways: dict[str, Way] = {"bare": Bare(given.namespace), "ours": Ours(given.namespace)}
    rounds: list[dict[str, list[float]]] = []
    waves: list[dict[str, Any]] = []
    try:
        for way in ways.values():
            await way.open()
            await one(way)
        for _ in range(given.rounds):
            order = random.sample(sorted(ways), len(ways))
            done = {name: await one(ways[name]) for name in order}
            rounds.append(done)
        for number in range(given.waves):
            order = sorted(ways, reverse=bool(number % 2))
            waves.append({name: await wave(ways[name], given.at_once) for name in order})
    finally:
        for way in ways.values():
            await way.close()
    return {"rounds": rounds, "waves": waves, "at_once": given.at_once}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    rounds, waves = found["rounds"], found["waves"]
    made: dict[str, Any] = {}
    for at, name in enumerate(("create_to_started", "create_to_answer")):
        made[f"{name}_ratio"] = quantiles([done["ours"][at] / done["bare"][at] for done in rounds]) if rounds else None
        made[f"{name}_s"] = (
            {way: statistics.median(done[way][at] for done in rounds) for way in ("bare", "ours")} if rounds else None
        )
    if waves:
        made["wave_ratio"] = statistics.median(one["ours"]["wall_s"] / one["bare"]["wall_s"] for one in waves)
        made["wave_cpu_share"] = statistics.median(one["ours"]["cpu_share"] for one in waves)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--waves", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    told = {"summary": summary(found), "machine": platform.uname()._asdict(), "python": platform.python_version(), **found}
    json.dump(told["summary"], sys.stdout, indent=2)
    print()
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
