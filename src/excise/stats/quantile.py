"""Quantiles with intervals from order statistics: exact for any distribution, and absent where n is too small."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from excise.stats.estimate import CONFIDENCE, Estimate
from excise.stats.jackknife import FEWEST_BLOCKS, student


def quantile(values: Sequence[float], q: float) -> Estimate | None:
    """The q-quantile with its interval; None where n gives none: a number without one would only look like knowledge."""
    ranks = interval_ranks(len(values), q)
    if ranks is None:
        return None
    ordered = sorted(values)
    low, high = ranks
    return Estimate(point(ordered, q), ordered[low - 1], ordered[high - 1])


def clustered(blocks: Sequence[Sequence[float]], q: float) -> Estimate | None:
    """The q-quantile of all values, where those of one block may go together.

    The share of values above it, block by block, says how many independent values all of them are worth; the interval is
    that of so many. With a value a block it is the order statistics' own. None where they are worth too few, and below the
    blocks that any interval needs: two or three that happen to be alike say nothing of how much blocks vary.
    """
    values = sorted(value for block in blocks for value in block)
    if len(values) == len(blocks):
        return quantile(values, q)
    if len(blocks) < FEWEST_BLOCKS:
        return None
    middle = point(values, q)
    worth = _worth(blocks, middle, len(values))
    ranks = interval_ranks(worth, q)
    if ranks is None:
        return None
    low, high = (values[_rank(rank, worth, len(values)) - 1] for rank in ranks)
    return Estimate(middle, low, high)


def _worth(blocks: Sequence[Sequence[float]], middle: float, n: int) -> int:
    """How many independent values the blocks' are worth for the share of values not above `middle`."""
    below = [sum(value <= middle for value in block) for block in blocks]
    share, count = sum(below) / n, len(blocks)
    if not 0 < share < 1 or count < 2:
        return count
    residuals = (seen - share * len(block) for seen, block in zip(below, blocks, strict=True))
    variance = count / (count - 1) * sum(residual**2 for residual in residuals) / n**2
    if variance == 0:
        return n
    # Never more than there are values; and with few blocks the variance itself is uncertain, which costs some.
    worth = min(float(n), share * (1 - share) / variance)
    worth *= (NormalDist().inv_cdf((1 + CONFIDENCE) / 2) / student(max(count - 1, 5))) ** 2
    return max(count, int(worth))  # blocks are independent, whatever goes on inside them


def _rank(rank: int, worth: int, n: int) -> int:
    """The rank among n values that stands where `rank` does among `worth`."""
    return min(n, max(1, round(rank / (worth + 1) * (n + 1))))


def point(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, interpolated between neighbours."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def interval_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (from 1) whose values hold the q-quantile between them with at least `confidence`.

    The number of values below the quantile is binomial, whatever the distribution. The narrowest pair wins; of equally
    narrow ones that whose coverage is nearest to what was asked.
    """
    at_most = _cumulative(n, q)
    best: tuple[int, float, int, int] | None = None
    high = 1
    for low in range(1, n + 1):
        high = max(high, low + 1)
        while high <= n and at_most[high - 1] - at_most[low - 1] < confidence:
            high += 1
        if high > n:
            break
        candidate = (high - low, at_most[high - 1] - at_most[low - 1], low, high)
        best = candidate if best is None else min(best, candidate)
    return None if best is None else best[2:]


def fewest(q: float, confidence: float = CONFIDENCE) -> int:
    """The smallest n that gives the q-quantile an interval."""
    n = 2
    while interval_ranks(n, q, confidence) is None:
        n += 1
    return n


def _cumulative(n: int, q: float) -> list[float]:
    """P(B <= k) for k in 0 .. n-1, B binomial(n, q); by logarithms, so that large n do not underflow at once."""
    total, found = 0.0, list[float]()
    for k in range(n):
        log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(q) + (n - k) * math.log1p(-q)
        total += math.exp(log)
        found.append(total)
    return found
