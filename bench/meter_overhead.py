"""What measuring adds to what is measured: the same T0 rollout as a trial of the meter's, and with nothing of it, in turn.

Bare: a Sandbox, the workload's actions, and the clock read once before and once after; nobody records. Metered: the meter's own
trial, with spans, counters, checks and the question who the sandbox is; its time is what the meter reports of it. Before
each, nothing runs for as long as the meter's quiet window, so that both begin on a host in the same state.

    python bench/meter_overhead.py [ADDRESS] [--seconds 75] [--out docs/results/meter/overhead.json]

Exit code 1 when the interval of the ratio does not end below 1.02.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from excise.api import connect
from excise.errors import SubstrateError
from excise.meter.answers import Sameness
from excise.meter.records import Cell, Plan
from excise.meter.rounds import Bench, Rounds, Slot
from excise.sandbox import Sandbox
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.quantile import clustered
from excise.substrate import Substrate
from excise.workloads.t0 import T0

LIMIT = 1.02
WARM_UP = 5
QUIET_S = Plan(cells=(), reference=None).quiet_s
ADDRESS = "namespace"


async def nobody(workload: str) -> tuple[str, ...]:
    """There is no witness: T0 says itself what its answers must be."""
    return ()


def bare(substrate: Substrate) -> Callable[[int], Awaitable[float]]:
    """Seconds of a rollout that nobody measures."""

    async def once(number: int) -> float:
        turns = T0().turns(f"bare-{number}")
        await asyncio.sleep(QUIET_S)  # the pause that a trial's quiet window is
        begun_ns = time.monotonic_ns()
        async with Sandbox(substrate, T0().spec("host")) as box:
            seen = [await box.run(turn.action) for turn in turns]
        took_s = (time.monotonic_ns() - begun_ns) / 1e9
        for turn, answer in zip(turns, seen, strict=True):
            if (fault := turn.expect.fault(answer)) is not None:
                raise SubstrateError(fault)
        return took_s

    return once


def metered(rounds: Rounds) -> Callable[[int], Awaitable[float]]:
    """Seconds of a rollout as the meter reports them."""
    cell = Cell(address=ADDRESS, workload=T0().name)

    async def once(number: int) -> float:
        (trial,) = await rounds.run(Slot(number, 0, cell))
        if trial.failure is not None:
            raise SubstrateError(trial.failure)
        return (trial.wall_ns - trial.apart_ns) / 1e9

    return once


async def pairs(address: str, seconds: float) -> dict[str, list[float]]:
    """Both in turn, the other one first every time, for so long."""
    found: dict[str, list[float]] = {"bare": [], "metered": []}
    async with connect(address) as substrate:
        bench = Bench(substrates={ADDRESS: substrate}, workloads={T0().name: T0()}, nulls=frozenset())
        rounds = Rounds(bench, "overhead", quiet_s=QUIET_S, same=Sameness({}, nobody))
        kinds = {"bare": bare(substrate), "metered": metered(rounds)}
        begun_s, number = time.monotonic(), 0
        while time.monotonic() - begun_s < seconds:
            for kind in ("bare", "metered") if number % 2 else ("metered", "bare"):
                took_s = await kinds[kind](number)
                if number >= WARM_UP:
                    found[kind].append(took_s)
            number += 1
        await rounds.close()
    return found


def judged(found: dict[str, list[float]]) -> dict[str, Any]:
    """The ratio of neighbours: its median, which a busy moment does not move, and that of the means."""
    ratios = [[with_s / without_s] for without_s, with_s in zip(found["bare"], found["metered"], strict=True)]
    median = clustered(ratios, 0.5)
    means = Blocks(found).estimate(lambda sums: sums["metered"] / sums["bare"], POSITIVE)
    if median is None:
        raise SubstrateError("fewer than 6 rounds fit: give more --seconds")
    return {
        "rounds": len(ratios),
        "ratio_p50": [median.value, median.low, median.high],
        "ratio_of_means": [means.value, means.low, means.high],
        "limit": LIMIT,
        "held": median.high is not None and median.high < LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What measuring adds to a rollout.")
    parser.add_argument("address", nargs="?", default=ADDRESS)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--out", type=Path, help="where all of it goes, as JSON")
    given = parser.parse_args()
    found = asyncio.run(pairs(given.address, given.seconds))
    record = judged(found)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        host = {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
        whole = {"address": given.address, "workload": T0().name, **record, **host, "seconds": found}
        given.out.write_text(json.dumps(whole) + "\n")
    value, low, high = record["ratio_p50"]
    mean, mean_low, mean_high = record["ratio_of_means"]
    sys.stdout.write(
        f"T0 on {given.address}, metered over bare: {value:.4f} ({low:.4f} to {high:.4f}), median of {record['rounds']} pairs; "
        f"of the means {mean:.4f} ({mean_low:.4f} to {mean_high:.4f}); limit {LIMIT:g}\n"
    )
    return 0 if record["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
