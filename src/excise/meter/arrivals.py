"""When the rollouts of a wave are to begin: all at once, or at random times whether or not those before them have ended."""

import asyncio
import itertools
import random

from excise.clock import now_ns
from excise.meter.records import Cell


def intended_ns(cell: Cell, seed: int, block: int) -> list[int]:
    """When each of the cell's rollouts is to begin, from the beginning of the wave."""
    return drawn_ns(cell.concurrency, cell.arrivals_per_s, seed, block)


def drawn_ns(count: int, rate_per_s: float, seed: int, block: int) -> list[int]:
    """A Poisson process: waits between arrivals are exponential. Without a rate all come at once.

    They depend on seed, block, rate and number alone, so that in one block every substrate meets the same arrivals.
    """
    if not rate_per_s:
        return [0] * count
    drawn = random.Random(f"{seed}:{block}:{rate_per_s!r}:{count}")  # noqa: S311 - times, not secrets
    waits_s = (drawn.expovariate(rate_per_s) for _ in range(count))
    return [round(at_s * 1e9) for at_s in itertools.accumulate(waits_s)]


async def until_ns(at_ns: int) -> int:
    """Wait for that time; how much later it is by then, because somebody kept the loop busy."""
    left_ns = at_ns - now_ns()
    if left_ns > 0:
        await asyncio.sleep(left_ns / 1e9)  # An arrival, not a pause for something to happen.
    return max(0, now_ns() - at_ns)
