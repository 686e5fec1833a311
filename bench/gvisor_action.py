"""How much faster an action in a gVisor sandbox is by the guest than by `runsc exec`: live sandboxes, ratios with intervals.

    python bench/gvisor_action.py [--blocks 20] [--actions 5] [--image excise/base] [--out docs/results/gvisor/action.json]

In each block every path runs `true` a few times, the paths in random order; a block's figure is the median of its actions.
`gvisor` is what an action costs by runsc exec; `runsc exec` is the bare command, which neither tells a timeout, nor kills what
detached, nor says how the program ended apart from itself. Exit code 1 when the guest is not at least ten times as fast as
`gvisor`, by the lower end of the interval.
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
TRUE = Exec(("true",))

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


async def block(run: Run, count: int) -> float:
    """The median seconds of so many actions."""
    seen: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        await run()
        seen.append(time.perf_counter() - begun)
    return statistics.median(seen)


async def measured(blocks: int, count: int, image: str) -> tuple[dict[str, list[float]], dict[str, str]]:
    seen: dict[str, list[float]] = {name: [] for name in NAMES}
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
            for name in random.sample(NAMES, len(NAMES)):
                took_s = await block(runs[name], count)
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
    found = {than: {name: times_as_fast(seen, name, than) for name in NAMES} for than in (PLAIN, BARE)}
    for name in NAMES:
        median_ms = 1000 * statistics.median(seen[name])
        print(f"{name:28} {median_ms:8.2f} ms   {found[PLAIN][name]} x {PLAIN}   {found[BARE][name]} x bare {BARE}")
    if given.out:
        ratios = {
            than: {name: [ratio.value, ratio.low, ratio.high] for name, ratio in some.items()} for than, some in found.items()
        }
        record = {"seed": seed, "versions": versions, "blocks": given.blocks, "actions": given.actions}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({**record, "times_as_fast_as": ratios, "seconds": seen}, indent=1) + "\n")
    low = found[PLAIN][GUEST].low
    return int(low is None or low < PROMISE)


if __name__ == "__main__":
    sys.exit(main())
