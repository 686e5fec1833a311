"""How much faster an action is by the guest than by ssh on a kept-open connection: two machines of one spec, in turn.

    python bench/vm_action.py [--blocks 20] [--actions 5] [--boots 3] [--out docs/results/vm/action.json]

In each block every path runs `true` a few times, the paths in random order; a block's figure is the median of its actions.
Where ssh's time goes is shown beside it, from an answer of sshd's without a process to the whole action. Then each machine's
boot, by its own clock. Exit code 1 when the guest is not at least 5 times as fast, by the lower end of the interval.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from excise.action import Exec, Shell
from excise.guestless.inside import Start
from excise.spec import Spec
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.substrates.vm import VmGuestSubstrate, VmSubstrate
from excise.substrates.vm.guest import VmGuestHandle
from excise.substrates.vm.handle import VmHandle

PROMISE = 5.0
PLAIN = "vm"
GUEST = "vm+guest"
BOOT_S = 600.0
Boots = dict[str, list[dict[str, float]]]


def actions(plain: VmHandle, guest: VmGuestHandle) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each a way to spend time; those of ssh from the least to the whole."""
    entered = plain.entrance.command(Start(argv=("true",), env={}))

    async def refused() -> None:
        with suppress(ConnectionRefusedError):
            await plain.connect(1)

    return {
        "ssh: an answer of sshd's": refused,
        "ssh: the machine's own `:`": lambda: plain.connection.run(":"),
        "ssh: `true`, entering the sandbox": lambda: plain.connection.run(entered),
        PLAIN: lambda: plain.run(Exec(("true",))),
        GUEST: lambda: guest.run(Exec(("true",))),
        f"{GUEST}, in a session": lambda: guest.run(Shell(":", session="main")),
    }


async def block(action: Callable[[], Awaitable[object]], count: int) -> float:
    """The median seconds of so many actions."""
    seen: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        await action()
        seen.append(time.perf_counter() - begun)
    return statistics.median(seen)


async def booted(substrate: VmSubstrate | VmGuestSubstrate, boots: list[dict[str, float]]) -> VmHandle | VmGuestHandle:
    """A machine, and what its boot took: by our clock in all, and by the machine's own for its parts."""
    begun = time.perf_counter()
    handle = await substrate.create(Spec(), deadline_s=BOOT_S, lease_s=3600, labels={}, request_id=uuid.uuid4().hex)
    whole_s = time.perf_counter() - begun
    up = float((await handle.run(Exec(("cat", "/proc/uptime")))).stdout.split()[0])
    answered_s = time.perf_counter() - begun
    marks = dict(re.findall(r"excise: (kernel|disks) ([\d.]+)", handle.console()))
    kernel_s, disks_s = float(marks["kernel"]), float(marks["disks"])
    before_s = answered_s - up  # QEMU's own start, the firmware and the loading of the kernel: no clock runs inside yet
    boots.append(
        {
            "all": whole_s,
            "before the kernel": before_s,
            "kernel": kernel_s,
            "modules and disks": disks_s - kernel_s,
            "init system and way in": whole_s - before_s - disks_s,
        }
    )
    return handle


async def measured(blocks: int, count: int, boots: int) -> tuple[dict[str, list[float]], Boots, dict[str, str]]:
    took: Boots = {PLAIN: [], GUEST: []}
    substrates = {PLAIN: VmSubstrate(), GUEST: VmGuestSubstrate()}
    try:
        versions = dict((await substrates[PLAIN].probe()).versions)
        for _ in range(boots - 1):
            for name in random.sample(sorted(substrates), 2):
                await (await booted(substrates[name], took[name])).close()
        plain, guest = await booted(substrates[PLAIN], took[PLAIN]), await booted(substrates[GUEST], took[GUEST])
        assert isinstance(plain, VmHandle)
        assert isinstance(guest, VmGuestHandle)
        ways = actions(plain, guest)
        seen: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(blocks + 1):  # the first is a warm-up and is not kept
            for name in random.sample(sorted(ways), len(ways)):
                took_s = await block(ways[name], count)
                if number:
                    seen[name].append(took_s)
    finally:
        for substrate in substrates.values():
            await substrate.close()
    return seen, took, versions


def times_as_fast(seen: dict[str, list[float]], name: str) -> Estimate:
    """The whole action by ssh over this one, block by block."""
    both = Blocks({"plain": seen[PLAIN], "this": seen[name]})
    return both.estimate(lambda sums: sums["plain"] / sums["this"], POSITIVE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--actions", type=int, default=5)
    parser.add_argument("--boots", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seed = random.randrange(1 << 32)
    random.seed(seed)
    seen, boots, versions = asyncio.run(measured(given.blocks, given.actions, given.boots))
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    found = {name: times_as_fast(seen, name) for name in seen}
    for name, ratio in found.items():
        median_ms = 1000 * statistics.median(seen[name])
        print(f"{name:40} {median_ms:8.2f} ms   {ratio} times as fast as {PLAIN} (n = {given.blocks})")
    for name, each in boots.items():
        parts = {part: statistics.median(boot[part] for boot in each) for part in each[0]}
        print(f"{name} boots: " + ", ".join(f"{part} {took_s:.2f} s" for part, took_s in parts.items()) + f" (n = {len(each)})")
    if given.out:
        ratios = {name: [ratio.value, ratio.low, ratio.high] for name, ratio in found.items()}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        told = {"seed": seed, "versions": versions, "times_as_fast": ratios, "seconds": seen, "boot_seconds": boots}
        given.out.write_text(json.dumps(told, indent=1) + "\n")
    low = found[GUEST].low
    return int(low is None or low < PROMISE)


if __name__ == "__main__":
    sys.exit(main())
