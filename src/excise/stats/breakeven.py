"""The length at which two rows cost the same: one is quick to start, the other quick for each action."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from excise.stats.estimate import Estimate
from excise.stats.jackknife import FEWEST_BLOCKS, Blocks, Sums, student
from excise.stats.projection import Costs, Line, line_of

Outcome = Literal["at", "always", "never", "equal"]
"""at: the second is cheaper on one side of `length`. always, never: at every length. equal: they cost the same."""


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """When the second row is cheaper than the first."""

    outcome: Outcome
    length: Estimate | None = None
    """Actions. Its interval holds every length at which the two cannot be told apart; `inf` where that never ends."""
    above: bool = True
    """The second is cheaper for rollouts longer than `length`; False: for shorter ones."""
    certain: bool = False
    """Always, never: no length from one action on is within the interval. At: the interval has two ends."""


def break_even(first: Costs, second: Costs) -> BreakEven:
    """From two rows of one run, paired within blocks; from two given lines without interval."""
    both = None if first.blocks is None or second.blocks is None else first.blocks.beside(second.blocks)
    if both is None:
        return judged(_difference(first.line, second.line), None)
    mine, theirs = (line_of(both.sums, prefix) for prefix in ("a.", "b."))
    return judged(_difference(mine, theirs), _undecided(both))


def _difference(first: Line, second: Line) -> Line:
    """What the second costs more than the first, as a line."""
    return Line(fixed_s=second.fixed_s - first.fixed_s, per_action_s=second.per_action_s - first.per_action_s)


def judged(more: Line, among: tuple[float, float] | None) -> BreakEven:
    """From what the second costs more than the first, and the lengths at which that cannot be told from nothing."""
    at_one = more.at(1)
    if more.fixed_s == more.per_action_s == 0:
        return BreakEven(outcome="equal")
    crossing = -more.fixed_s / more.per_action_s if more.per_action_s else math.inf
    if 1 <= crossing < math.inf:
        low, high = (None, None) if among is None else (max(1.0, among[0]), among[1])
        ends = low is not None and high is not None and low > 1 and high < math.inf
        return BreakEven(outcome="at", length=Estimate(crossing, low, high), above=more.per_action_s < 0, certain=ends)
    # The lines do not cross at any length of one action or more: who is dearer at one action is dearer at all.
    dearer = at_one > 0 or (at_one == 0 and more.per_action_s > 0)
    sure = among is not None and not _overlaps(among)
    return BreakEven(outcome="never" if dearer else "always", certain=sure)


def _overlaps(among: tuple[float, float]) -> bool:
    """Whether some length of one action or more is among those at which the rows cannot be told apart."""
    return among[1] >= 1


def _undecided(both: Blocks) -> tuple[float, float] | None:
    """The lengths at which the difference's interval holds zero, by Fieller: (fixed + n x each)^2 <= t^2 x its variance.

    None below the blocks an interval needs. Outer ends are infinite where the difference for each action may be zero.
    """
    if both.n < FEWEST_BLOCKS:
        return None

    def difference(sums: Sums) -> Line:
        return _difference(line_of(sums, "a."), line_of(sums, "b."))

    return undecided(difference(both.sums), [[difference(sums) for sums in both.without_each]])


def undecided(found: Line, without: Sequence[Sequence[Line]]) -> tuple[float, float]:
    """The same for a difference that rests on several runs: its lines without each block of each. Runs err on their own."""
    fixed, slope = found.fixed_s, found.per_action_s
    each = [([line.fixed_s for line in run], [line.per_action_s for line in run]) for run in without]
    reach = student(min(map(len, without)) - 1) ** 2
    # a n^2 + b n + c <= 0
    a = slope**2 - reach * sum(_covariance(slopes, slopes) for _, slopes in each)
    b = 2 * (fixed * slope - reach * sum(_covariance(fixes, slopes) for fixes, slopes in each))
    c = fixed**2 - reach * sum(_covariance(fixes, fixes) for fixes, _ in each)
    return _where_not_above_zero(a, b, c)


def _covariance(x: list[float], y: list[float]) -> float:
    """Of two statistics, from their values without each block."""
    n = len(x)
    x_middle, y_middle = math.fsum(x) / n, math.fsum(y) / n
    return (n - 1) / n * math.fsum((a - x_middle) * (b - y_middle) for a, b in zip(x, y, strict=True))


def _where_not_above_zero(a: float, b: float, c: float) -> tuple[float, float]:
    """The hull, among lengths above zero, of where a n^2 + b n + c is not above zero; (0, 0) if it is nowhere."""
    root = b * b - 4 * a * c
    if a > 0:
        if root < 0:
            return (0.0, 0.0)
        ends = sorted(((-b - math.sqrt(root)) / (2 * a), (-b + math.sqrt(root)) / (2 * a)))
        return (max(0.0, ends[0]), max(0.0, ends[1]))
    # The difference for each action may be zero, so very long rollouts are not told apart, unless hardly any are.
    if c <= 0:
        return (0.0, math.inf)
    if a == 0:
        return (-c / b, math.inf) if b < 0 else (0.0, 0.0)
    # It opens downwards and begins above zero: beyond its one crossing it stays below.
    return ((-b - math.sqrt(root)) / (2 * a), math.inf)
