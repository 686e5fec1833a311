"""Do intervals hold what they say? Experiments whose truth is known, simulated, and how often the interval has it.

Noise multiplies, and is of two kinds: common to a block, whatever the cell, and each trial's own. Everything is drawn from one
seed, so the figures are the same on every machine.
"""

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist

import msgspec

from excise.stats.breakeven import break_even
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SHARE, SIGNED, Blocks, Sums
from excise.stats.projection import Costs, line_of
from excise.stats.quantile import clustered, quantile

EXPERIMENTS = 2000
LEAST, MOST = 0.93, 0.97
BUSY = 0.3
"""Noise common to a block, as the standard deviation of a logarithm: a host that is a third slower now and then."""
OWN = 0.2
LANES = 8

Draw = Callable[[random.Random], Estimate | None]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of number, how it is simulated, and its truth."""

    name: str
    truth: float
    draw: Draw
    judged: bool = True
    """False: told, and known to miss; `why` says why no interval can do better."""
    why: str = ""


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a case."""

    name: str
    share: float
    """Of experiments whose interval held the truth."""
    experiments: int
    judged: bool
    why: str

    @property
    def fault(self) -> bool:
        return self.judged and not LEAST <= self.share <= MOST


def cover(case: Case, experiments: int = EXPERIMENTS, seed: int = 0) -> Covered:
    """Run one case. An experiment without interval holds nothing."""
    chance = random.Random(f"{seed}:{case.name}")  # noqa: S311 - a simulation
    held = sum(_holds(case.draw(chance), case.truth) for _ in range(experiments))
    return Covered(name=case.name, share=held / experiments, experiments=experiments, judged=case.judged, why=case.why)


def _holds(found: Estimate | None, truth: float) -> bool:
    return found is not None and found.low is not None and found.high is not None and found.low <= truth <= found.high


def cases() -> tuple[Case, ...]:
    """Every kind of interval that a report prints."""
    at_95 = math.exp(NormalDist().inv_cdf(0.95) * math.hypot(BUSY, OWN))
    return (
        Case(name="p50 of 30 trials", truth=1.0, draw=lambda chance: quantile(_times(chance, 30), 0.5)),
        Case(name="p50 of 100 trials", truth=1.0, draw=lambda chance: quantile(_times(chance, 100), 0.5)),
        Case(name="p95 of 100 trials", truth=at_95, draw=lambda chance: quantile(_times(chance, 100), 0.95)),
        Case(name=f"p50 of 30 waves of {LANES}", truth=1.0, draw=lambda chance: clustered(_waves(chance, 30), 0.5)),
        Case(name=f"p95 of 60 waves of {LANES}", truth=at_95, draw=lambda chance: clustered(_waves(chance, 60), 0.95)),
        *(Case(name=f"ratio in {n} blocks", truth=3.0, draw=_ratio(n)) for n in (6, 10, 30)),
        Case(name="mean of 10 blocks", truth=1.0, draw=_mean(10)),
        Case(name="mean of 30 blocks", truth=1.0, draw=_mean(30)),
        Case(name="tax rate in 10 blocks", truth=0.75, draw=_tax_rate(10)),
        Case(name="difference of nothing in 10 blocks", truth=0.0, draw=_difference(10, 1.0)),
        Case(name="difference in 10 blocks", truth=1.0, draw=_difference(10, 2.0)),
        Case(name="break-even length in 20 blocks", truth=50.0, draw=_break_even(20)),
        Case(
            name="mean of 30 blocks, one in twenty takes three times as long",
            truth=1.1,
            draw=_mean(30, outliers=0.05),
            judged=False,
            why="what did not happen in a run is in no interval made from it",
        ),
    )


def _noise(chance: random.Random, spread: float) -> float:
    """Of mean one."""
    return chance.lognormvariate(-spread * spread / 2, spread)


def _busy(chance: random.Random, blocks: int) -> list[float]:
    return [_noise(chance, BUSY) for _ in range(blocks)]


def _times(chance: random.Random, n: int) -> list[float]:
    """Of median one."""
    return [chance.lognormvariate(0, math.hypot(BUSY, OWN)) for _ in range(n)]


def _waves(chance: random.Random, blocks: int) -> list[list[float]]:
    shared = [chance.lognormvariate(0, BUSY) for _ in range(blocks)]
    return [[busy * chance.lognormvariate(0, OWN) for _ in range(LANES)] for busy in shared]


def _cell(chance: random.Random, busy: Sequence[float], mean: float, outliers: float = 0.0) -> list[float]:
    return [mean * b * _noise(chance, OWN) * (3.0 if chance.random() < outliers else 1.0) for b in busy]


def _over(above: str, below: str) -> Callable[[Sums], float]:
    return lambda sums: sums[above] / sums[below]


def _ratio(blocks: int) -> Draw:
    def draw(chance: random.Random) -> Estimate:
        busy = _busy(chance, blocks)
        return Blocks({"a": _cell(chance, busy, 3.0), "b": _cell(chance, busy, 1.0)}).estimate(_over("a", "b"), POSITIVE)

    return draw


def _mean(blocks: int, outliers: float = 0.0) -> Draw:
    def draw(chance: random.Random) -> Estimate:
        values = _cell(chance, _busy(chance, blocks), 1.0, outliers)
        return Blocks({"a": values, "n": [1.0] * blocks}).estimate(_over("a", "n"), POSITIVE)

    return draw


def _tax_rate(blocks: int) -> Draw:
    def draw(chance: random.Random) -> Estimate:
        busy = _busy(chance, blocks)
        tax, work = _cell(chance, busy, 3.0), _cell(chance, busy, 1.0)
        columns = {"tax": tax, "total": [t + w for t, w in zip(tax, work, strict=True)]}
        return Blocks(columns).estimate(_over("tax", "total"), SHARE)

    return draw


def _difference(blocks: int, mean: float) -> Draw:
    """Of a cell with that mean and one with mean one."""

    def draw(chance: random.Random) -> Estimate:
        busy = _busy(chance, blocks)
        pairs = zip(_cell(chance, busy, mean), _cell(chance, busy, 1.0), strict=True)
        columns = {"more": [a - b for a, b in pairs], "n": [1.0] * blocks}
        return Blocks(columns).estimate(_over("more", "n"), SIGNED)

    return draw


def _break_even(blocks: int) -> Draw:
    """Of 1 s + 0.10 s an action and 4 s + 0.04 s an action."""

    def costs(chance: random.Random, busy: Sequence[float], fixed_s: float, per_action_s: float) -> Costs:
        one = [1.0] * len(busy)
        columns = {"rollouts": one, "actions": one, "fixed": _cell(chance, busy, fixed_s)}
        found = Blocks(columns | {"acting": _cell(chance, busy, per_action_s)})
        return Costs(line_of(found.sums), 1, found)

    def draw(chance: random.Random) -> Estimate | None:
        busy = _busy(chance, blocks)
        return break_even(costs(chance, busy, 1.0, 0.10), costs(chance, busy, 4.0, 0.04)).length

    return draw
