"""Ten thousand sandboxes made, used and closed: what the host has of each kind of thing before, and after.

    python bench/churn.py [ADDRESS] [--count 10000] [--out FILE]

Exit code 1 when processes, mounts, cgroups, net namespaces' links, directories or descriptors are not as before.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from sustained import life, spec_for

from excise.api import connect
from excise.storage.home import state_dir

AT_ONCE = 8
SETTLE_S = 30.0


def census() -> dict[str, int]:
    """How many there are of what a sandbox is made of."""
    return {
        "processes": sum(entry.name.isdigit() for entry in Path("/proc").iterdir()),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": sum(len(folders) for _, folders, _ in os.walk("/sys/fs/cgroup")),
        "directories": sum(1 for _ in state_dir().iterdir()),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


async def settled(before: dict[str, int]) -> dict[str, int]:
    """The census, once it is as before or time is up: the kernel ends some things in the background."""
    begun = time.monotonic()
    while (now := census()) != before and time.monotonic() - begun < SETTLE_S:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.1)
    return now


async def churned(given: argparse.Namespace) -> dict[str, Any]:
    async with connect(given.address) as substrate:
        spec = await spec_for(substrate, given.image)
        await asyncio.gather(*(life(substrate, spec) for _ in range(AT_ONCE)))
        before = census()
        left = iter(range(given.count))
        begun = time.perf_counter()

        async def worker() -> None:
            for _ in left:
                await life(substrate, spec)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        took_s = time.perf_counter() - begun
        after = await settled(before)
    about = {"address": given.address, "image": given.image, "kernel": platform.release(), "privileged": os.geteuid() == 0}
    return {**about, "sandboxes": given.count, "seconds": took_s, "before": before, "after": after}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="namespace")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(churned(given))
    print(f"{found['sandboxes']} sandboxes in {found['seconds']:.0f} s; before {found['before']}; after {found['after']}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(found["before"] != found["after"])


if __name__ == "__main__":
    sys.exit(main())
