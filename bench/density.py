"""What one more live, idle sandbox weighs, after one action: by MemAvailable, with PSS and slab beside it.

    python bench/density.py [ADDRESS[@COUNT,COUNT...] ...] [--counts 1000 3000] [--out FILE]

All sandboxes of a count are alive at once and each has echoed a checked nonce; afterwards every one answers again. With several
counts a line through them gives what one more weighs, without what the first brings along. `excise advise` reads the file.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import uuid
from pathlib import Path
from typing import Any

from sustained import LIMITS, spec_for

from excise.action import Exec
from excise.api import connect
from excise.errors import ExciseError
from excise.meter.provenance import provenance
from excise.spec import Spec
from excise.substrate import Handle, Substrate

AT_ONCE = 16
DEADLINE_S = 600.0
"""Machines that are emulated boot slowly, several at once slower still."""
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
    handle = await substrate.create(spec, deadline_s=DEADLINE_S, lease_s=3600, labels={}, request_id=uuid.uuid4().hex)
    await handle.ready()
    await answers(handle, number)
    return handle


async def answers(handle: Handle, number: int) -> None:
    seen = await handle.run(Exec(("echo", str(number))))
    if seen.stdout != f"{number}\n".encode():
        raise RuntimeError(f"sandbox {number} answered {seen.text!r}")


async def density(substrate: Substrate, spec: Spec, count: int) -> dict[str, Any]:
    gate = asyncio.Semaphore(AT_ONCE)
    handles: list[Handle] = []

    async def gated(number: int) -> None:
        async with gate:
            handles.append(await one(substrate, spec, number))

    known, before = processes(), memory_kib()
    try:
        async with asyncio.TaskGroup() as making:
            for number in range(count):
                making.create_task(gated(number))
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


def slope_kib(runs: list[dict[str, Any]]) -> float | None:
    """What one more weighs: least squares through the counts."""
    if len({run["sandboxes"] for run in runs}) < 2:
        return None
    counts = [run["sandboxes"] for run in runs]
    return statistics.linear_regression(counts, [run["available_kib_each"] * run["sandboxes"] for run in runs]).slope


async def measured(address: str, counts: list[int], image: str) -> dict[str, Any]:
    async with connect(address) as substrate:
        spec = await spec_for(substrate, image)
        await (await one(substrate, spec, 0)).close()
        runs = [await density(substrate, spec, count) for count in counts]
    return {
        "address": address,
        "limits": sorted(LIMITS.asked() & spec.limits.asked()),
        "runs": runs,
        "slope_kib": slope_kib(runs),
    }


def told(found: dict[str, Any]) -> None:
    for run in found["runs"]:
        grown = ", ".join(f"{name} {kib:.0f}" for name, kib in run["grown_kib_each"].items())
        print(
            f"{found['address']}, {run['sandboxes']} live: {run['available_kib_each']:.0f} KiB each by MemAvailable, "
            f"PSS {run['pss_kib_each']:.0f} ({grown})"
        )
    if found["slope_kib"] is not None:
        print(f"{found['address']}: one more weighs {found['slope_kib']:.0f} KiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="*", default=["namespace"])
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    origin = provenance(Path.cwd(), {})
    about = {"kind": "density", "host": origin.host, "memory_bytes": origin.memory_bytes, "image": given.image}
    every: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for text in given.addresses:
        address, _, own = text.partition("@")
        try:
            found = asyncio.run(measured(address, [int(one) for one in own.split(",")] if own else given.counts, given.image))
        except (ExciseError, ExceptionGroup) as error:
            failed[address] = str(error)
            print(f"{address}: {error}", file=sys.stderr)
            continue
        told(found)
        every.append(found)
        if given.out:  # after each: what took long is kept whatever becomes of the next
            given.out.parent.mkdir(parents=True, exist_ok=True)
            whole = {
                **about,
                "kernel": platform.release(),
                "privileged": os.geteuid() == 0,
                "addresses": every,
                "failed": failed,
            }
            given.out.write_text(json.dumps(whole, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
