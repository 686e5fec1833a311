"""What a claim of a dependency-warm sandbox costs, and a burst of them, beside the floor: a bare spawn of a program.

    python bench/pool_claim.py [ADDRESS] [--blocks 20] [--claims 10] [--burst 64] [--out FILE]

A claim is `create` and `ready` on a pool that holds the very state, under other limits: the liveness check, the new limits and
the lease are part of it. The floor is measured before each. A burst is so many claims at once on a pool of so many, which have
the limits already, as the rollouts of one trainer do. Prints ratios of the blocks' medians (bursts: of their 95th percentiles),
with intervals over blocks. Exit code 1 when a promise is missed.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from sustained import spec_for

from excise.action import Shell
from excise.clock import now_ns
from excise.measuring import floor_of
from excise.meter.latency import Floor
from excise.spec import Spec, Stage, Step
from excise.stats.jackknife import POSITIVE, Blocks
from excise.substrate import Handle
from excise.substrates.pool import Pool

BASE = "excise/base"
MOST_CLAIM = 0.5
MOST_BURST = 10.0
WARM = Step("deps", (Shell("echo installed > installed"),), Stage.DEPS)


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float | None]:
    found = Blocks({"above": list(above), "below": list(below)}).estimate(lambda s: s["above"] / s["below"], POSITIVE)
    return {"value": found.value, "low": found.low, "high": found.high}


def filled(spec: Spec) -> Spec:
    """The same state under other limits, as far as limits are enforced here."""
    asked = spec.limits.asked()
    other = {name: value for name, value in (("memory_bytes", 1 << 29), ("pids", 256), ("cpus", 1.0)) if name in asked}
    return msgspec.structs.replace(spec, limits=msgspec.structs.replace(spec.limits, **other))


async def claimed(pool: Pool, spec: Spec) -> tuple[Handle, int]:
    begun = now_ns()
    handle = await pool.create(spec, deadline_s=30.0, lease_s=600.0, labels={}, request_id=uuid.uuid4().hex)
    await handle.ready()
    return handle, now_ns() - begun


async def singles(pool: Pool, spec: Spec, floor: Floor, given: argparse.Namespace) -> dict[str, Any]:
    """One after another; between them the shelf is filled again."""
    blocks: list[dict[str, list[int]]] = []
    for _ in range(given.blocks):
        await pool.fill(filled(spec), given.claims)
        seen: dict[str, list[int]] = {"floor_ns": [], "took_ns": []}
        handles: list[Handle] = []
        for _ in range(given.claims):
            seen["floor_ns"].append(floor())
            handle, took_ns = await claimed(pool, spec)
            seen["took_ns"].append(took_ns)
            handles.append(handle)
        await asyncio.gather(*(handle.close() for handle in handles))
        blocks.append(seen)
    medians = {name: [statistics.median(block[name]) for block in blocks] for name in ("took_ns", "floor_ns")}
    return {"to_floor": ratio(medians["took_ns"], medians["floor_ns"]), "blocks": blocks}


async def bursts(pool: Pool, spec: Spec, floor: Floor, given: argparse.Namespace) -> dict[str, Any]:
    """All at once, each from the moment it was asked for."""
    blocks: list[dict[str, list[int]]] = []
    for _ in range(max(4, given.blocks // 4)):
        await pool.fill(spec, given.burst)
        floors = [floor() for _ in range(given.claims)]
        begun = now_ns()

        async def one() -> tuple[Handle, int]:
            handle, _ = await claimed(pool, spec)
            return handle, now_ns() - begun  # noqa: B023 - of this burst

        done = await asyncio.gather(*(one() for _ in range(given.burst)))
        await asyncio.gather(*(handle.close() for handle, _ in done))
        blocks.append({"floor_ns": floors, "took_ns": [took_ns for _, took_ns in done]})
    p95 = [statistics.quantiles(block["took_ns"], n=20)[-1] for block in blocks]
    medians = [statistics.median(block["floor_ns"]) for block in blocks]
    return {"p95_to_floor": ratio(p95, medians), "blocks": blocks}


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    floor = await floor_of(BASE, "true")
    pool = Pool(given.address, count=2 * given.burst, policy="none", reuse="never", pressure=False)
    try:
        spec = msgspec.structs.replace(await spec_for(pool, BASE), steps=(WARM,))
        row = await singles(pool, spec, floor, given)
        burst = await bursts(pool, spec, floor, given)
        figures = pool.figures()
    finally:
        await pool.close()
    about = {"address": given.address, "kernel": platform.release(), "cores": os.cpu_count(), "privileged": os.geteuid() == 0}
    hits = {"hits": dict(figures.hits), "misses": figures.misses, "dead": figures.dead}
    return {**about, "limits": sorted(spec.limits.asked()), **hits, "claims": row, "bursts": burst}


def said(name: str, found: dict[str, Any]) -> str:
    ends = f" [{found['low']:.2f}, {found['high']:.2f}]" if found["low"] is not None else ""
    return f"{name}: {found['value']:.2f} x{ends}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--claims", type=int, default=10)
    parser.add_argument("--burst", type=int, default=64)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    print(said("a claim of the very state, to floor", found["claims"]["to_floor"]))
    print(said(f"p95 of {given.burst} at once, to floor", found["bursts"]["p95_to_floor"]))
    floors = [ns for block in found["claims"]["blocks"] for ns in block["floor_ns"]]
    took = [ns for block in found["claims"]["blocks"] for ns in block["took_ns"]]
    print(f"medians: floor {statistics.median(floors) / 1e3:.0f} us, claim {statistics.median(took) / 1e3:.0f} us")
    print(f"hits {found['hits']}, misses {found['misses']}, dead {found['dead']}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found) + "\n")
    slow = found["claims"]["to_floor"]["value"] > MOST_CLAIM or found["bursts"]["p95_to_floor"]["value"] > MOST_BURST
    return int(slow or found["misses"] > 0)


if __name__ == "__main__":
    sys.exit(main())
