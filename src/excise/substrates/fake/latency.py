"""Scripted latencies and faults, all from one seed."""

import asyncio
import random


class Chance:
    """One seeded source of jitter and mishaps."""

    def __init__(self, seed: int, jitter: float) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a simulation, and it must be repeatable
        self._jitter = jitter

    def happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def jittered(self, seconds: float) -> float:
        """A lognormal around `seconds`, whose median it is; `jitter` is the relative spread."""
        return seconds * self._random.lognormvariate(0.0, self._jitter) if self._jitter and seconds else seconds

    async def take(self, seconds: float) -> None:
        await asyncio.sleep(self.jittered(seconds))
