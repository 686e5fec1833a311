"""How many sandboxes a second a machine can make, use and throw away, sustained, with every teardown awaited.

    python bench/sustained.py [ADDRESS] [--seconds 60] [--flight 1 4 16] [--out FILE]

Each sandbox echoes a nonce that is checked, with all the limits the substrate enforces. The rate counts from the first
create to the last close. Net namespaces are torn down in the background, so how long it takes until memory is back is told too.
"""

import argparse
import asyncio
import json
import os
import platform
import secrets
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from excise.action import Exec
from excise.api import connect
from excise.spec import Limits, Spec
from excise.substrate import Substrate

LIMITS = Limits(memory_bytes=1 << 30, cpus=2.0, pids=512, disk_bytes=1 << 30, inodes=100_000)
DRAIN_S = 30.0


async def spec_for(substrate: Substrate, image: str) -> Spec:
    enforced = (await substrate.probe()).limits
    return Spec(image=image, limits=Limits(**{name: getattr(LIMITS, name) for name in LIMITS.asked() & enforced}))


async def life(substrate: Substrate, spec: Spec) -> float:
    """Create, one checked action, close; how long it took."""
    nonce = secrets.token_hex(8)
    begun = time.perf_counter()
    handle = await substrate.create(spec, deadline_s=60, lease_s=600, labels={}, request_id=uuid.uuid4().hex)
    try:
        answer = await handle.run(Exec(("echo", nonce)))
    finally:
        await handle.close()
    if answer.stdout != f"{nonce}\n".encode():
        raise RuntimeError(f"asked for {nonce}, got {answer.text!r}")
    return time.perf_counter() - begun


async def sustained(substrate: Substrate, spec: Spec, flight: int, seconds: float) -> dict[str, Any]:
    lives: list[float] = []
    before = (available_kib(), os.times())
    begun = time.perf_counter()

    async def worker() -> None:
        while time.perf_counter() - begun < seconds:
            lives.append(await life(substrate, spec))

    await asyncio.gather(*(worker() for _ in range(flight)))
    took_s = time.perf_counter() - begun
    used = os.times()
    ordered = sorted(lives)
    return {
        "in_flight": flight,
        "seconds": took_s,
        "sandboxes": len(lives),
        "per_second": len(lives) / took_s,
        "life_p50_s": statistics.median(ordered),
        "life_p95_s": ordered[int(0.95 * len(ordered))],
        "python_cpu_share": (used.user + used.system - before[1].user - before[1].system) / took_s,
        "drained_after_s": await drained(before[0]),
    }


async def drained(before_kib: int) -> float | None:
    """How long until memory is back to within 32 MiB of what it was; None if that did not happen."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < DRAIN_S:
        if available_kib() > before_kib - 32 * 1024:
            return time.perf_counter() - begun
        await asyncio.sleep(0.05)  # the kernel tells nobody when a net namespace is gone
    return None


def available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    async with connect(given.address) as substrate:
        spec = await spec_for(substrate, given.image)
        for _ in range(50):
            await life(substrate, spec)
        runs = [await sustained(substrate, spec, flight, given.seconds) for flight in given.flight]
    return {
        "address": given.address,
        "image": given.image,
        "privileged": os.geteuid() == 0,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "limits": sorted(spec.limits.asked()),
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--flight", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    for run in found["runs"]:
        print(
            f"{run['in_flight']} in flight: {run['per_second']:.0f} a second, life p50 {run['life_p50_s'] * 1e3:.2f} ms, "
            f"p95 {run['life_p95_s'] * 1e3:.2f} ms, Python {100 * run['python_cpu_share']:.0f} % of a core, "
            f"memory back after {run['drained_after_s']} s"
        )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
