"""What a live, idle sandbox weighs, after one action: by MemAvailable, with PSS and slab beside it.

    python bench/density.py [ADDRESS] [--counts 1000 3000] [--out FILE]

All sandboxes of a count are alive at once and each has echoed a checked nonce; afterwards every one answers again.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import uuid
from pathlib import Path
from typing import Any

from sustained import LIMITS, spec_for

from excise.action import Exec
from excise.api import connect
from excise.spec import Spec
from excise.substrate import Handle, Substrate

AT_ONCE = 16
FIELDS = ("MemAvailable", "Slab", "SUnreclaim", "KernelStack", "PageTables", "AnonPages", "Shmem", "Percpu")


def memory_kib() -> dict[str, int]:
    """A few lines of /proc/meminfo, once nothing is in flight: what is only cached is dropped first where we may."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    found: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in FIELDS:
            found[name] = int(value.split()[0])
    return found


def pss_kib(before: set[int]) -> int:
    """Of all processes that were not there before."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in before:
            continue
        try:
            lines = (entry / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


async def one(substrate: Substrate, spec: Spec, number: int) -> Handle:
    handle = await substrate.create(spec, deadline_s=60, lease_s=3600, labels={}, request_id=uuid.uuid4().hex)
    await answers(handle, number)
    return handle


async def answers(handle: Handle, number: int) -> None:
    seen = await handle.run(Exec(("echo", str(number))))
    if seen.stdout != f"{number}\n".encode():
        raise RuntimeError(f"sandbox {number} answered {seen.text!r}")


async def density(substrate: Substrate, spec: Spec, count: int) -> dict[str, Any]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def gated(number: int) -> Handle:
        async with gate:
            return await one(substrate, spec, number)

    known, before = processes(), memory_kib()
    handles = await asyncio.gather(*(gated(number) for number in range(count)))
    try:
        after = memory_kib()
        pss = pss_kib(known)
        await asyncio.gather(*(answers(handle, number) for number, handle in enumerate(handles)))
    finally:
        await asyncio.gather(*(handle.close() for handle in handles))
    return {
        "sandboxes": count,
        "available_kib_each": (before["MemAvailable"] - after["MemAvailable"]) / count,
        "pss_kib_each": pss / count,
        "grown_kib_each": {name: (after[name] - before[name]) / count for name in FIELDS if name != "MemAvailable"},
    }


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    async with connect(given.address) as substrate:
        spec = await spec_for(substrate, given.image)
        await (await one(substrate, spec, 0)).close()
        runs = [await density(substrate, spec, count) for count in given.counts]
    about = {"address": given.address, "image": given.image, "kernel": platform.release(), "privileged": os.geteuid() == 0}
    return {**about, "limits": sorted(LIMITS.asked() & spec.limits.asked()), "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    for run in found["runs"]:
        grown = ", ".join(f"{name} {kib:.0f}" for name, kib in run["grown_kib_each"].items())
        print(
            f"{run['sandboxes']} live: {run['available_kib_each']:.0f} KiB each by MemAvailable, "
            f"PSS {run['pss_kib_each']:.0f} ({grown})"
        )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
