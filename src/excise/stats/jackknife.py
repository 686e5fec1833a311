"""Intervals over blocks: each block is left out in turn, and how much that moves a statistic says how far to trust it.

Whole blocks are left out, so what moves all cells of a block together stays together. The interval is Student's t on a
scale where the statistic is nearly normal. It was chosen by simulation over the bootstrap (BCa), whose intervals are too
narrow with few blocks; and unlike that it is the same every time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from excise.stats.estimate import CONFIDENCE, Estimate

FEWEST_BLOCKS = 6
"""Below this no interval is given; the same number that a median needs."""

NEAR_ZERO = 3.0
"""Standard errors within which a difference counts as near zero. Of 0.5 to 4, in simulation, those from 2 to 4 did well."""

Sums = Mapping[str, float]


@dataclass(frozen=True)
class Scale:
    """Where a statistic's error is about normal, the way there and the way back."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    holds: Callable[[float], bool]
    """Whether a value has a place on this scale; where one has none, PLAIN is used."""
    outward: bool = False
    """The end away from zero reaches further, as it would on a logarithmic scale."""


PLAIN = Scale(lambda x: x, lambda y: y, lambda _: True)
"""Errors are alike on both sides."""
SIGNED = Scale(lambda x: x, lambda y: y, lambda _: True, outward=True)
"""For differences, which may be below zero: far from it noise multiplies them too, and near it does not."""
POSITIVE = Scale(math.log, math.exp, lambda x: x > 0)
"""For times and ratios: noise multiplies them."""
SHARE = Scale(lambda x: math.log(1 - x), lambda y: 1 - math.exp(y), lambda x: x < 1)
"""For a tax rate: what is left of one, the share of work, is a ratio."""


class Blocks:
    """Named columns, a value a block; `ids` says which blocks, for comparisons within them."""

    def __init__(self, columns: Mapping[str, Sequence[float]], ids: Sequence[int] | None = None) -> None:
        lengths = {len(column) for column in columns.values()} | ({len(ids)} if ids is not None else set[int]())
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"columns of one length above zero are needed, not {sorted(lengths)}")
        self.n = lengths.pop()
        self.ids = tuple(range(self.n)) if ids is None else tuple(ids)
        self.columns = columns
        self.sums: Sums = {name: math.fsum(column) for name, column in columns.items()}

    def estimate(self, statistic: Callable[[Sums], float], scale: Scale = PLAIN, confidence: float = CONFIDENCE) -> Estimate:
        """`statistic` of the columns' sums: a ratio, a difference, a mean. Without enough blocks, without interval."""
        value = statistic(self.sums)
        if self.n < FEWEST_BLOCKS:
            return Estimate(value)
        without = [statistic(sums) for sums in self.without_each]
        if not all(map(scale.holds, (value, *without))):
            scale = PLAIN
        reach = student(self.n - 1, confidence)
        low, high = _reached(value, without, reach, scale)
        if scale.outward and low < high:
            low, high = _outward(value, without, reach, (low, high))
        return Estimate(value, low, high)

    def beside(self, other: "Blocks", mine: str = "a.", theirs: str = "b.") -> "Blocks | None":
        """The blocks that both have, with the columns of both under a prefix each; None where there is none."""
        return joined({mine: self, theirs: other})

    def named(self, prefix: str) -> "Blocks":
        """The same with the columns under a prefix."""
        return Blocks({prefix + name: column for name, column in self.columns.items()}, self.ids)

    @cached_property
    def without_each(self) -> list[Sums]:
        return [{name: self.sums[name] - column[i] for name, column in self.columns.items()} for i in range(self.n)]


def joined(parts: Mapping[str, Blocks]) -> Blocks | None:
    """The blocks that all have, with the columns of each under its prefix; None where there is none."""
    shared = sorted(set[int].intersection(*(set(one.ids) for one in parts.values()))) if parts else []
    if not shared:
        return None
    found: dict[str, list[float]] = {}
    for prefix, one in parts.items():
        at = {block: index for index, block in enumerate(one.ids)}
        found |= {prefix + name: [column[at[block]] for block in shared] for name, column in one.columns.items()}
    return Blocks(found, shared)


def _reached(value: float, without: Sequence[float], reach: float, scale: Scale) -> tuple[float, float]:
    """So many standard errors to both sides, on that scale."""
    middle, error = scale.to(value), standard_error([scale.to(x) for x in without])
    low, high = sorted((scale.back(middle - reach * error), scale.back(middle + reach * error)))
    return low, high


def _outward(value: float, without: Sequence[float], reach: float, ends: tuple[float, float]) -> tuple[float, float]:
    """Move the end that is away from zero to where a scale puts it that is logarithmic some standard errors from zero."""
    near = NEAR_ZERO * standard_error(without)
    low, high = _reached(
        value, without, reach, Scale(lambda x: math.asinh(x / near), lambda y: near * math.sinh(y), lambda _: True)
    )
    return (ends[0], max(ends[1], high)) if value > 0 else (min(ends[0], low), ends[1])


def standard_error(without: Sequence[float]) -> float:
    """The standard error of a statistic, from its values without each block."""
    n = len(without)
    middle = math.fsum(without) / n
    return math.sqrt((n - 1) / n * math.fsum((x - middle) ** 2 for x in without))


def student(v: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors an interval reaches with v degrees of freedom, by the series in 1 / v (v of 5 or more)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
