"""How much faster an action is by the guest than by pod exec: pods of one spec, in turn, as a ratio with its interval.

    python bench/kubernetes_action.py [--blocks 20] [--actions 5] [--namespace NAME] [--out docs/results/kubernetes/action.json]

In each block every path runs `true` a few times, the paths in random order; a block's figure is the median of its actions.
Exit code 1 when the guest is not at least 20 times as fast, by the lower end of the interval.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from excise.action import Action, Exec, Shell
from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks

PROMISE = 20.0
PLAIN = "kubernetes"
GUEST = "kubernetes+guest"
PATHS = (PLAIN, GUEST, f"{GUEST}?link=exec", f"{GUEST}?link=tcp")
TRUE: Action = Exec(("true",))
ACTIONS: dict[str, tuple[str, Action]] = {
    **{path: (path, TRUE) for path in PATHS},
    f"{GUEST}, in a session": (GUEST, Shell(":", session="main")),
}


async def block(box: Sandbox, action: Action, count: int) -> float:
    """The median seconds of so many actions."""
    seen: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        assert (await box.run(action)).ok
        seen.append(time.perf_counter() - begun)
    return statistics.median(seen)


async def measured(blocks: int, count: int, namespace: str | None) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in ACTIONS}
    async with AsyncExitStack() as held:
        boxes: dict[str, Sandbox] = {}
        for path in PATHS:
            options = f"{'&' if '?' in path else '?'}namespace={namespace}" if namespace else ""
            substrate = await held.enter_async_context(connect(path + options))
            boxes[path] = await held.enter_async_context(Sandbox(substrate, Spec(), ttl_s=3600))
        for number in range(blocks + 1):  # the first is a warm-up and is not kept
            for name in random.sample(sorted(ACTIONS), len(ACTIONS)):
                path, action = ACTIONS[name]
                took_s = await block(boxes[path], action, count)
                if number:
                    seen[name].append(took_s)
    return seen


def times_as_fast(seen: dict[str, list[float]], name: str) -> Estimate:
    """Pod exec's seconds over this one's, block by block."""
    both = Blocks({"plain": seen[PLAIN], "this": seen[name]})
    return both.estimate(lambda sums: sums["plain"] / sums["this"], POSITIVE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--actions", type=int, default=5)
    parser.add_argument("--namespace")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seed = random.randrange(1 << 32)
    random.seed(seed)
    seen = asyncio.run(measured(given.blocks, given.actions, given.namespace))
    found = {name: times_as_fast(seen, name) for name in ACTIONS}
    for name, ratio in found.items():
        median_ms = 1000 * statistics.median(seen[name])
        print(f"{name:40} {median_ms:8.2f} ms   {ratio} times as fast as pod exec (n = {given.blocks})")
    if given.out:
        ratios = {name: [ratio.value, ratio.low, ratio.high] for name, ratio in found.items()}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"seed": seed, "times_as_fast": ratios, "seconds": seen}, indent=1) + "\n")
    low = found[GUEST].low
    return int(low is None or low < PROMISE)


if __name__ == "__main__":
    sys.exit(main())
