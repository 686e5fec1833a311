"""A gibibyte of output through a stream, with a stalled reader beside it: memory, and what other actions feel of it.

    python bench/output.py [ADDRESS] [--out FILE]

Several rounds of: actions alone; beside a stream that is read as fast as it comes; beside one that nobody reads.
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
from pathlib import Path
from typing import Any

from excise.action import Exec, Output
from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Spec

GIBIBYTE = 1 << 30
ROUNDS = 5
ACTIONS = 100
FLOOD = Exec(("head", "-c", str(GIBIBYTE), "/dev/zero"), timeout_s=300.0)


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


async def actions(box: Sandbox, until: "asyncio.Task[int] | None") -> list[float]:
    """Checked actions one after another: a fixed number, or as long as the stream runs."""
    seen: list[float] = []
    while len(seen) < ACTIONS if until is None else not until.done():
        nonce = secrets.token_hex(8)
        begun = time.perf_counter()
        answer = await box.run(["echo", nonce])
        seen.append(time.perf_counter() - begun)
        if answer.stdout != f"{nonce}\n".encode():
            raise RuntimeError(f"asked for {nonce}, got {answer.text!r}")
    return seen


async def drink(box: Sandbox, peak_kib: list[int]) -> int:
    """Read the whole flood; how many bytes came."""
    process = await box.start(FLOOD)
    total = 0
    async for event in process.events():
        if isinstance(event, Output):
            total += len(event.data)
            peak_kib.append(resident_kib())
    return total


async def one_round(flooded: Sandbox, beside: Sandbox, peak_kib: list[int]) -> dict[str, Any]:
    alone = await actions(beside, None)
    begun = time.perf_counter()
    reading = asyncio.create_task(drink(flooded, peak_kib))
    with_reader = await actions(beside, reading)
    took_s = time.perf_counter() - begun
    if reading.result() != GIBIBYTE:
        raise RuntimeError(f"{reading.result()} bytes came of {GIBIBYTE}")
    stalled = await flooded.start(FLOOD)
    other_box = await actions(beside, None)
    same_box = await actions(flooded, None)
    peak_kib.append(resident_kib())
    await stalled.kill()
    return {
        "alone_s": alone,
        "beside_reader_s": with_reader,
        "stalled_other_s": other_box,
        "stalled_same_s": same_box,
        "flood_s": took_s,
    }


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    async with (
        connect(given.address) as substrate,
        Sandbox(substrate, Spec(image=given.image)) as flooded,
        Sandbox(substrate, Spec(image=given.image)) as beside,
    ):
        await actions(beside, None)
        before = resident_kib()
        peak_kib: list[int] = []
        rounds = [await one_round(flooded, beside, peak_kib) for _ in range(ROUNDS)]
    about = {"address": given.address, "image": given.image, "kernel": platform.release(), "privileged": os.geteuid() == 0}
    kinds = ("alone_s", "beside_reader_s", "stalled_other_s", "stalled_same_s")
    summary = {f"{kind.removesuffix('_s')}_p95_ms": statistics.median(p95(r[kind]) for r in rounds) * 1e3 for kind in kinds}
    return {
        **about,
        "grown_kib": max(peak_kib) - before,
        "gibibytes_a_second": ROUNDS / sum(r["flood_s"] for r in rounds),
        "summary": summary,
        "rounds": rounds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    print(f"{found['gibibytes_a_second']:.2f} GiB/s, memory grew by {found['grown_kib']} KiB; p95 in ms: {found['summary']}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
