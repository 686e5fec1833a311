"""What a machine costs: booted, copied from a saved one, and the monitor's own start; and what one takes while it is idle.

    python bench/microvm.py [--blocks 10] [--each 3] [--idle 8] [--image excise/base] [--out FILE]

In every block, in turn: `cold` (create and ready on `microvm?cold=1`, which boots), `copy` (the same on `microvm`, which
restores what was saved after a boot), `monitor` (QEMU alone, until it takes commands: part of the two before), and actions,
a snapshot and a reset in the copy. Nothing is started ahead of time. Prints ratios of the blocks' medians with intervals over
blocks. Memory: of so many idle machines, each after one command, by MemAvailable and by QEMU's proportional share. Exit code
1 when a promise is missed.
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

from excise.action import Exec, Shell
from excise.clock import now_ns
from excise.spec import Spec
from excise.stats.jackknife import POSITIVE, Blocks
from excise.substrates.microvm import MicrovmSubstrate, machines
from excise.substrates.microvm.handle import MicrovmHandle
from excise.vmm.kept import place

LEAST_RATIO = 5.0
DEADLINE_S = 120.0
NAMES = ("cold", "copy", "monitor", "action", "session", "snapshot", "reset")


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float | None]:
    found = Blocks({"above": list(above), "below": list(below)}).estimate(lambda s: s["above"] / s["below"], POSITIVE)
    return {"value": found.value, "low": found.low, "high": found.high}


async def opened(substrate: MicrovmSubstrate, spec: Spec) -> tuple[MicrovmHandle, int]:
    begun = now_ns()
    handle = await substrate.create(spec, deadline_s=DEADLINE_S, lease_s=600.0, labels={}, request_id=uuid.uuid4().hex)
    await handle.ready()
    return handle, now_ns() - begun


async def monitor(substrate: MicrovmSubstrate, spec: Spec) -> int:
    """QEMU's start: until it answers, with the saved memory mapped and nothing loaded."""
    kind, _ = await substrate.kind(spec)
    begun = now_ns()
    running = await machines.wait(kind, place(f"template-{kind.key()}"))
    try:
        await running.machine.query("query-status")
        return now_ns() - begun
    finally:
        await running.close()


async def used(handle: MicrovmHandle, seen: dict[str, list[int]]) -> None:
    """Actions and states of a copy that is there."""
    await handle.run(Shell(":", session="main"))
    for name, action in (("action", Exec(("true",))), ("session", Shell(":", session="main"))):
        begun = now_ns()
        await handle.run(action)
        seen[name].append(now_ns() - begun)


async def states(substrate: MicrovmSubstrate, handle: MicrovmHandle, seen: dict[str, list[int]]) -> None:
    begun = now_ns()
    snapshot = await handle.snapshot()
    seen["snapshot"].append(now_ns() - begun)
    begun = now_ns()
    await handle.reset(snapshot)
    seen["reset"].append(now_ns() - begun)
    await substrate.discard(snapshot)


async def block(cold: MicrovmSubstrate, warm: MicrovmSubstrate, spec: Spec, each: int) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {name: [] for name in NAMES}
    for _ in range(each):
        handle, took_ns = await opened(cold, spec)
        seen["cold"].append(took_ns)
        await handle.close()
        seen["monitor"].append(await monitor(warm, spec))
        handle, took_ns = await opened(warm, spec)
        seen["copy"].append(took_ns)
        await used(handle, seen)
        await states(warm, handle, seen)
        await handle.close()
    return seen


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say what is available")


def share_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


async def memory(warm: MicrovmSubstrate, spec: Spec, count: int) -> dict[str, int]:
    first, _ = await opened(warm, spec)  # what all share is there before it is counted
    before = available_bytes()
    handles = [(await opened(warm, spec))[0] for _ in range(count)]
    taken = (before - available_bytes()) // count
    shares = [share_bytes(handle.running.machine.pid) for handle in handles]
    await asyncio.gather(*(handle.close() for handle in (first, *handles)))
    return {"available_bytes": taken, "pss_bytes": int(statistics.median(shares)), "machines": count}


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    spec = Spec(image=given.image)
    cold, warm = MicrovmSubstrate(cold=True), MicrovmSubstrate()
    try:
        versions = dict((await warm.probe()).versions)
        await (await opened(warm, spec))[0].close()  # the machine that is copied is booted and saved before anything is timed
        blocks = [await block(cold, warm, spec, given.each) for _ in range(given.blocks)]
        idle = await memory(warm, spec, given.idle)
    finally:
        await cold.close()
        await warm.close()
    medians = {name: [statistics.median(one[name]) for one in blocks] for name in NAMES}
    after = [copy - start for copy, start in zip(medians["copy"], medians["monitor"], strict=True)]
    return {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "versions": versions,
        "image": given.image,
        "n": given.blocks * given.each,
        "p50_ms": {name: statistics.median(x for one in blocks for x in one[name]) / 1e6 for name in NAMES},
        "cold_to_copy": ratio(medians["cold"], medians["copy"]),
        "cold_to_copy_without_monitor": ratio(medians["cold"], after),
        "idle": idle,
        "blocks": blocks,
    }


def said(name: str, found: dict[str, Any]) -> str:
    ends = f" [{found['low']:.2f}, {found['high']:.2f}]" if found["low"] is not None else ""
    return f"{name}: {found['value']:.2f} x{ends}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--idle", type=int, default=8)
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    row = asyncio.run(measured(given))
    if given.out is not None:
        given.out.write_text(json.dumps(row, indent=1) + "\n")
    print(", ".join(f"{name} {took:.1f} ms" for name, took in row["p50_ms"].items()), f"(p50, n = {row['n']})")
    print(said("a boot to a copy", row["cold_to_copy"]))
    print(said("the same without the monitor's own start", row["cold_to_copy_without_monitor"]))
    idle = row["idle"]
    print(f"idle: {idle['available_bytes'] / 2**20:.0f} MiB by MemAvailable, {idle['pss_bytes'] / 2**20:.0f} MiB of QEMU's PSS")
    return 0 if row["cold_to_copy"]["value"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
