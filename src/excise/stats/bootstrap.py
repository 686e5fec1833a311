"""The block bootstrap: whole blocks are drawn again, so what moves all cells of a block together stays together.

Intervals are BCa (bias-corrected and accelerated), their levels widened as Student's t is wider than the normal: without
that, intervals of few blocks are too narrow.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

from excise.stats.estimate import CONFIDENCE, Estimate

TIMES = 2000
FEWEST_BLOCKS = 6
"""Below this no interval is given; the same number that a median needs."""

Sums = Mapping[str, float]
_NORMAL = NormalDist()


class Blocks:
    """Named columns, a value a block. Their sums over drawn blocks are made once and serve every statistic."""

    def __init__(self, columns: Mapping[str, Sequence[float]], seed: int, times: int = TIMES) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"columns of one length above zero are needed, not {sorted(lengths)}")
        self.n = lengths.pop()
        self._columns = columns
        self._all = {name: math.fsum(column) for name, column in columns.items()}
        self._drawn = self._draw(seed, times) if self.n >= FEWEST_BLOCKS else []

    def estimate(self, statistic: Callable[[Sums], float]) -> Estimate:
        """`statistic` of the columns' sums: a ratio, a difference, a mean. Without enough blocks, without interval."""
        value = statistic(self._all)
        if self.n < FEWEST_BLOCKS:
            return Estimate(value)
        drawn = sorted(map(statistic, self._drawn))
        without = [statistic(sums) for sums in self._without_each()]
        low, high = (_at(drawn, level) for level in _levels(value, drawn, without))
        return Estimate(value, low, high)

    def _draw(self, seed: int, times: int) -> list[Sums]:
        chance = random.Random(seed)  # noqa: S311 - resampling, not a secret
        picks = (chance.choices(range(self.n), k=self.n) for _ in range(times))
        return [{name: sum(map(column.__getitem__, picked)) for name, column in self._columns.items()} for picked in picks]

    def _without_each(self) -> list[Sums]:
        return [{name: self._all[name] - column[i] for name, column in self._columns.items()} for i in range(self.n)]


def _levels(value: float, drawn: Sequence[float], without: Sequence[float]) -> tuple[float, float]:
    """At which shares of the drawn values the interval ends."""
    below = sum(x < value for x in drawn) + sum(x == value for x in drawn) / 2
    # Never quite 0 or 1: those would put an end at infinity.
    share = min(max(below, 1), len(drawn) - 1) / len(drawn)
    bias = _NORMAL.inv_cdf(share)
    acceleration = _acceleration(without)
    reach = _wide(len(without))

    def level(z: float) -> float:
        return _NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))

    return level(-reach), level(reach)


def _acceleration(without: Sequence[float]) -> float:
    """How the spread changes with the value, from leaving out one block at a time."""
    middle = math.fsum(without) / len(without)
    away = [middle - x for x in without]
    squares = math.fsum(d * d for d in away)
    return math.fsum(d**3 for d in away) / (6 * squares**1.5) if squares > 0 else 0.0


def _wide(n: int) -> float:
    """How many standard deviations to reach out with n blocks: Student's t, by its series in 1 / degrees of freedom."""
    z, v = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2), n - 1
    t = (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
    return t * math.sqrt(n / v)


def _at(ordered: Sequence[float], level: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, math.floor(level * len(ordered))))]
