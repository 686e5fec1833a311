"""When the rollouts of a wave are to begin: all at once, or at random times whether or not those before them have ended."""

import asyncio
import itertools
import random

from excise.clock import now_ns
from excise.meter.records import Cell


def intended_ns(cell: Cell, seed: int, block: int) -> list[int]:
    """When each of the cell's rollouts is to begin, from the beginning of the wave.

    A Poisson process: waits between arrivals are exponential. They depend on seed, block, rate and number alone, so that in one
    block every substrate meets the same arrivals.
    """
    rate = cell.arrivals_per_s
    if not rate:
        return [0] * cell.concurrency
    drawn = random.Random(f"{seed}:{block}:{rate!r}:{cell.concurrency}")  # noqa: S311 - times, not secrets
    waits_s = (drawn.expovariate(rate) for _ in range(cell.concurrency))
    return [round(at_s * 1e9) for at_s in itertools.accumulate(waits_s)]


async def until_ns(at_ns: int) -> int:
    """Wait for that time; how much later it is by then, because somebody kept the loop busy."""
    left_ns = at_ns - now_ns()
    if left_ns > 0:
        await asyncio.sleep(left_ns / 1e9)  # An arrival, not a pause for something to happen.
    return max(0, now_ns() - at_ns)
