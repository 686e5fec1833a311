"""What the wire adds to an action: the same one here and behind `excise serve` on loopback, beside the floor.

    python bench/serve_action.py [ADDRESS] [--blocks 40] [--actions 50] [--out FILE]

In each block, one after another: a bare spawn of `true` (the floor), `true` in a sandbox of this process, and in one of a
server over TCP; then the same with `:` in a session. Prints what TCP adds at the median, in floors, with an interval over
blocks. Exit code 1 when it is more than 0.4.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from excise.action import Action, Exec, Shell
from excise.api import connect
from excise.clock import now_ns
from excise.measuring import floor_of
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.stats.jackknife import Blocks

MOST_FLOORS = 0.4
BASE = "excise/base"
ACTIONS: dict[str, Action] = {"exec": Exec(("true",), timeout_s=60), "session": Shell(":", session="main", timeout_s=60)}


async def timed(box: Sandbox, action: Action) -> int:
    begun = now_ns()
    seen = await box.run(action)
    took = now_ns() - begun
    assert seen.ok
    return took


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    floor = await floor_of(BASE, "true")
    rows: dict[str, list[dict[str, list[int]]]] = {name: [] for name in ACTIONS}
    spec = Spec(image=BASE)
    async with (
        connect(given.address) as here,
        connect(f"hosted:{given.address}") as there,
        Sandbox(here, spec) as near,
        Sandbox(there, spec) as far,
    ):
        for number in range(-2, given.blocks):
            for name, action in ACTIONS.items():
                seen: dict[str, list[int]] = {"floor_ns": [], "here_ns": [], "there_ns": []}
                for _ in range(given.actions):
                    seen["floor_ns"].append(floor())
                    seen["here_ns"].append(await timed(near, action))
                    seen["there_ns"].append(await timed(far, action))
                if number >= 0:  # the first two warm up
                    rows[name].append(seen)
    found = {name: {"added_floors": added(blocks), "blocks": blocks} for name, blocks in rows.items()}
    about = {"address": given.address, "kernel": platform.release(), "cores": os.cpu_count(), "privileged": os.geteuid() == 0}
    return {**about, **found}


def added(blocks: list[dict[str, list[int]]]) -> dict[str, float | None]:
    medians = {name: [float(statistics.median(block[name])) for block in blocks] for name in blocks[0]}
    made = Blocks(medians).estimate(lambda s: (s["there_ns"] - s["here_ns"]) / s["floor_ns"])
    return {"value": made.value, "low": made.low, "high": made.high}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--actions", type=int, default=50)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    for name in ACTIONS:
        one, blocks = found[name]["added_floors"], found[name]["blocks"]
        middle = {of: statistics.median(ns for block in blocks for ns in block[of]) / 1e3 for of in blocks[0]}
        said = ", ".join(f"{of.removesuffix('_ns')} {us:.0f} us" for of, us in middle.items())
        print(f"{name}: TCP adds {one['value']:.2f} floors [{one['low']:.2f}, {one['high']:.2f}] ({said})")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found) + "\n")
    return int(any(found[name]["added_floors"]["value"] > MOST_FLOORS for name in ACTIONS))


if __name__ == "__main__":
    raise SystemExit(main())
