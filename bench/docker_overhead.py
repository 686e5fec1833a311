"""What the docker substrate adds to the raw Engine API: both in turn, in one run, as a ratio with its interval.

    python bench/docker_overhead.py [--rounds 60] [--out docs/results/seam/docker_overhead.json]

Raw is the least code that does the same work: create, start, one exec, remove; and an exec alone, its output read to the
end and its exit code fetched. Exit code 1 when the substrate adds 5 % or more to either.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp

from excise.action import Exec
from excise.spec import Spec
from excise.storage.image import resolve
from excise.substrates.docker import DockerSubstrate

PROMISE = 1.05
RESAMPLES = 10_000
SOCKET = "/var/run/docker.sock"


class Raw:
    """The Engine API by hand."""

    def __init__(self, image: str, binds: list[str], env: dict[str, str]) -> None:
        self._http = aiohttp.ClientSession("http://docker", connector=aiohttp.UnixConnector(SOCKET))
        self._config = {
            "Image": image,
            "Entrypoint": ["sleep", "2147483647"],
            "Env": [f"{k}={v}" for k, v in env.items()],
            "WorkingDir": "/work",
            "HostConfig": {"NetworkMode": "none", "Binds": binds, "LogConfig": {"Type": "none"}},
        }

    async def create(self) -> str:
        async with self._http.post("/containers/create", json=self._config) as answer:
            made = (await answer.json())["Id"]
        async with self._http.post(f"/containers/{made}/start") as answer:
            assert answer.status == 204
        return made

    async def exec(self, container: str) -> None:
        config = {"AttachStdout": True, "AttachStderr": True, "Cmd": ["true"]}
        async with self._http.post(f"/containers/{container}/exec", json=config) as answer:
            made = (await answer.json())["Id"]
        async with self._http.post(f"/exec/{made}/start", json={"Detach": False, "Tty": False}) as answer:
            await answer.read()
        async with self._http.get(f"/exec/{made}/json") as answer:
            assert (await answer.json())["ExitCode"] == 0

    async def remove(self, container: str) -> None:
        async with self._http.delete(f"/containers/{container}", params={"force": "1", "v": "1"}) as answer:
            assert answer.status == 204

    async def life(self) -> None:
        made = await self.create()
        await self.exec(made)
        await self.remove(made)

    async def close(self) -> None:
        await self._http.close()


async def ours(substrate: DockerSubstrate, spec: Spec) -> None:
    """Create, a first command's answer (that is `ready`), close."""
    handle = await substrate.create(spec, deadline_s=60, lease_s=600, labels={}, request_id=uuid.uuid4().hex)
    await handle.ready()
    await handle.close()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def interleaved(pair: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, list[float]]:
    """Both in each round, in random order; the first round is a warm-up and is not kept."""
    seen: dict[str, list[float]] = {name: [] for name in pair}
    for number in range(rounds + 1):
        for name in random.sample(sorted(pair), len(pair)):
            took_s = await timed(pair[name])
            if number:
                seen[name].append(took_s)
    return seen


def ratio(seen: dict[str, list[float]]) -> dict[str, float]:
    """The ratio of medians, ours to raw, with a 95 % interval from resampled rounds."""
    rounds = list(zip(seen["ours"], seen["raw"], strict=True))
    found = sorted(_ratio(random.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    return {"ratio": _ratio(rounds), "low": found[RESAMPLES // 40], "high": found[-RESAMPLES // 40]}


def _ratio(rounds: list[tuple[float, float]]) -> float:
    mine, raw = zip(*rounds, strict=True)
    return statistics.median(mine) / statistics.median(raw)


async def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    spec, image = Spec(image="host"), await resolve("host")
    substrate = DockerSubstrate()
    held = await substrate.create(spec, deadline_s=60, lease_s=600, labels={}, request_id=uuid.uuid4().hex)
    reference = f"excise/host:{image.digest.removeprefix('sha256:')[:12]}"
    raw = Raw(reference, [f"{host}:{inside}:ro" for host, inside in image.binds], dict(image.env))
    container = await raw.create()
    try:
        lives = {"raw": raw.life, "ours": lambda: ours(substrate, spec)}
        execs = {"raw": lambda: raw.exec(container), "ours": lambda: held.run(Exec(("true",)))}
        return {"create to remove": await interleaved(lives, rounds), "exec": await interleaved(execs, 4 * rounds)}
    finally:
        await raw.remove(container)
        await raw.close()
        await held.close()
        await substrate.close()


def shown(name: str, times: dict[str, list[float]], found: dict[str, float]) -> str:
    medians = ", ".join(f"{who} {statistics.median(t) * 1000:.1f} ms" for who, t in times.items())
    return f"{name}: {found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]  ({medians}, n = {len(times['raw'])})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seed = random.randrange(1 << 32)
    random.seed(seed)
    seen = asyncio.run(measured(given.rounds))
    summary = {name: ratio(times) for name, times in seen.items()}
    for name, times in seen.items():
        print(shown(name, times, summary[name]))
    if given.out:
        record = {"kernel": platform.release(), "seed": seed, "summary": summary, "seconds": seen}
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(found["ratio"] >= PROMISE for found in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
