"""How much faster an action in a gVisor sandbox is by the guest than by `runsc exec`: live sandboxes, ratios with intervals.

    python bench/gvisor_action.py [--blocks 20] [--actions 5] [--image excise/base] [--out docs/results/gvisor/action.json]

In each block every path runs its action a few times, the paths in random order; a block's figure is the median of its actions.

    gvisor               `true` by `runsc exec`, as the contract wants it: its timeout, its end, what it left
    runsc exec           the bare command, which does none of that
    gvisor+guest         `true` by the guest
    in a session         a shell command in the session of a rollout, which is what an agent's step is
    inside               a program in the sandbox that starts `true` itself: gVisor's own price, which no path can go below

Exit code 1 when a step by the guest is not at least ten times as fast as either way of `runsc exec`, by the lower ends of the
intervals.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from excise.action import Action, Exec, Shell
from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.storage.home import state_dir
from excise.substrates.gvisor.program import find

PROMISE = 10.0
PLAIN, GUEST = "gvisor", "gvisor+guest"
BARE = "runsc exec"
SESSION = f"{GUEST}, in a session"
NAMES = (PLAIN, BARE, GUEST, SESSION)
INSIDE = "inside"
TRUE = Exec(("true",))
SPAWN = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    print(time.perf_counter() - begun)
"""

Run = Callable[[], Awaitable[None]]


def in_box(box: Sandbox, action: Action) -> Run:
    async def run() -> None:
        assert (await box.run(action)).ok

    return run


def bare(box: Sandbox) -> Run:
    """The command itself, on the same sandbox as `gvisor`."""
    argv = (str(find(None)), f"--root={state_dir() / box.id / 'state'}", "exec", "sandbox", "true")

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0

    return run


async def inside(box: Sandbox, count: int) -> float:
    """The median seconds that the sandbox itself takes to start and end a program."""
    seen = await box.run(["python3", "-c", SPAWN, str(count)])
    assert seen.ok, seen.text
    return statistics.median(float(line) for line in seen.stdout.split())


async def block(run: Run, count: int) -> float:
    """The median seconds of so many actions."""
    seen: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        await run()
        seen.append(time.perf_counter() - begun)
    return statistics.median(seen)


async def measured(blocks: int, count: int, image: str) -> tuple[dict[str, list[float]], dict[str, str]]:
    seen: dict[str, list[float]] = {name: [] for name in (*NAMES, INSIDE)}
    async with AsyncExitStack() as held:
        boxes: dict[str, Sandbox] = {}
        versions: dict[str, str] = {}
        for path in (PLAIN, GUEST):
            substrate = await held.enter_async_context(connect(path))
            versions = dict((await substrate.probe()).versions)
            boxes[path] = await held.enter_async_context(Sandbox(substrate, Spec(image=image), ttl_s=3600))
        runs = {
            PLAIN: in_box(boxes[PLAIN], TRUE),
            BARE: bare(boxes[PLAIN]),
            GUEST: in_box(boxes[GUEST], TRUE),
            SESSION: in_box(boxes[GUEST], Shell(":", session="main")),
        }
        for number in range(blocks + 1):  # the first is a warm-up and is not kept
            for name in random.sample([*seen], len(seen)):
                took_s = await (inside(boxes[GUEST], count) if name == INSIDE else block(runs[name], count))
                if number:
                    seen[name].append(took_s)
    return seen, versions


def times_as_fast(seen: dict[str, list[float]], name: str, than: str) -> Estimate:
    """The other's seconds over this one's, block by block."""
    both = Blocks({"other": seen[than], "this": seen[name]})
    return both.estimate(lambda sums: sums["other"] / sums["this"], POSITIVE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--actions", type=int, default=5)
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seed = random.randrange(1 << 32)
    random.seed(seed)
    seen, versions = asyncio.run(measured(given.blocks, given.actions, given.image))
    found = {than: {name: times_as_fast(seen, name, than) for name in seen} for than in (PLAIN, BARE)}
    for name in seen:
        median_ms = 1000 * statistics.median(seen[name])
        print(f"{name:28} {median_ms:8.2f} ms   {found[PLAIN][name]} x {PLAIN}   {found[BARE][name]} x bare {BARE}")
    if given.out:
        ratios = {
            than: {name: [ratio.value, ratio.low, ratio.high] for name, ratio in some.items()} for than, some in found.items()
        }
        record = {"seed": seed, "versions": versions, "blocks": given.blocks, "actions": given.actions}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({**record, "times_as_fast_as": ratios, "seconds": seen}, indent=1) + "\n")
    lows = [found[than][SESSION].low for than in (PLAIN, BARE)]
    return int(any(low is None or low < PROMISE for low in lows))


if __name__ == "__main__":
    sys.exit(main())
