"""What `excise.record()` costs an action: rounds with and without it in turn, on a substrate that does nothing.

Spans are timed whether or not somebody records them, so the third kind, the bare handle without `Sandbox`, bounds the cost
from above: all that `Sandbox.run` does for an action, recording included.

    python bench/recording.py [--out docs/results/seam/recording.json]

Exit code 1 when that bound is 20 microseconds an action or more.
"""

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import excise
from excise.action import Exec
from excise.meter.null import NullHandle, NullSubstrate
from excise.sandbox import Sandbox

ROUNDS = 60
ACTIONS = 500
LIMIT_US = 20.0
KINDS = ("bare", "unrecorded", "recorded")


async def round_us(kind: str) -> float:
    """Microseconds an action of one round; creating and closing are outside."""
    action = Exec(("true",), timeout_s=60.0)
    with excise.record() if kind == "recorded" else nullcontext():
        async with Sandbox(NullSubstrate()) as box:
            run = NullHandle("bare").run if kind == "bare" else box.run
            begun = time.perf_counter_ns()
            for _ in range(ACTIONS):
                await run(action)
            return (time.perf_counter_ns() - begun) / 1e3 / ACTIONS


async def rounds() -> dict[str, list[float]]:
    """Every kind in turn, the first of each round another one; the first round warms up and is left out."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS + 1):
        for place in range(len(KINDS)):
            kind = KINDS[(number + place) % len(KINDS)]
            took_us = await round_us(kind)
            if number:
                found[kind].append(took_us)
    return found


def added_us(found: dict[str, list[float]], over: str) -> float:
    """What recording adds to another kind, paired within rounds."""
    return statistics.median(b - a for a, b in zip(found[over], found["recorded"], strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description="What recording costs an action.")
    parser.add_argument("--out", type=Path, help="where the raw rounds go, as JSON")
    out: Path | None = parser.parse_args().out
    found = asyncio.run(rounds())
    p50 = {kind: statistics.median(found[kind]) for kind in KINDS}
    most_us = added_us(found, "bare")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {"rounds_us_per_action": found, "p50_us": p50, "actions_a_round": ACTIONS, "limit_us": LIMIT_US}
        record |= {"added_to_unrecorded_us": added_us(found, "unrecorded"), "added_to_bare_us": most_us}
        record |= {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
        out.write_text(json.dumps(record) + "\n")
    say = sys.stdout.write
    say("an action on the null substrate: " + ", ".join(f"{kind} {us:.2f} us" for kind, us in p50.items()) + "\n")
    say(f"recorded / unrecorded: {p50['recorded'] / p50['unrecorded']:.2f} x, {added_us(found, 'unrecorded'):+.2f} us\n")
    say(f"recorded and all else Sandbox.run does add {most_us:.2f} us to the bare handle (limit {LIMIT_US:g} us)\n")
    return 0 if most_us < LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
