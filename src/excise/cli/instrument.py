"""What `excise check meter` runs: simulations first, then the live checks on `local`, which every machine has."""

import asyncio
from collections.abc import Iterator

from excise.api import connect
from excise.meter.admission import calibrate
from excise.meter.selfcheck import AGAIN, DELAY_S, DELAYED, ONCE, time_copies
from excise.stats.selfcheck import Finding, alike, coverage, delayed, overhead
from excise.workloads.t0 import T0

ACTIONS = 4


def findings() -> Iterator[Finding]:
    """One after another, each when it is known."""
    yield from coverage()
    yield from asyncio.run(_live())


async def _live() -> tuple[Finding, ...]:
    workload = T0(actions=ACTIONS)
    async with connect("local") as substrate:
        took_s = await time_copies(substrate, workload)
    return (
        alike(took_s[ONCE], took_s[AGAIN]),
        delayed(took_s[ONCE], took_s[DELAYED], ACTIONS, DELAY_S),
        overhead(await calibrate(workload, "host")),
    )
