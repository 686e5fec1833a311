"""How large a pool should be: idle sandboxes hold memory, and a claim that finds none waits for one to be made.

A pool that makes a new sandbox for every one that was claimed is a base-stock system: with claims at random times, the number
in the making is Poisson, with the claims of one making as its mean, however long makings vary (Palm). A claim finds an idle
sandbox where fewer are in the making than the pool has.
"""

import math
from collections.abc import Callable

from excise.stats.estimate import Estimate

_FURTHER = 8.0
"""Standard deviations of claims in the making beyond which a larger pool changes nothing."""
_MOST_IN_MAKING = 64.0
"""Beyond so many a pool that does not pay yet is not looked at further: it would be the host's whole work to fill it."""
_HALVINGS = 12


def served(size: int, in_making: float) -> float:
    """The share of claims that find an idle sandbox, of a pool of `size`, with so many in the making on average."""
    if not in_making:
        return 1.0 if size else 0.0
    terms = (math.exp(k * math.log(in_making) - in_making - math.lgamma(k + 1)) for k in range(size))
    return min(1.0, math.fsum(terms))


def best_size(cost: Callable[[int], float], in_making: float, most: int) -> int:
    """The size from 1 to `most` that costs least; of equals the smallest."""
    reach = min(most, math.ceil(in_making + _FURTHER * math.sqrt(in_making)) + 2)
    return min(range(1, max(1, reach) + 1), key=lambda size: (cost(size), size))


def pays_from(saved: float, held: float, making_s: float) -> float:
    """Starts an hour from which a pool pays: `saved` by a start that finds one idle, `held` by one sandbox in an hour.

    inf where it never does. A start that finds none costs what it would without a pool.
    """
    if held <= 0:
        return 0.0 if saved > 0 else math.inf
    if saved <= held * making_s / 3600:  # even a pool that everybody asks all the time holds one for each in the making
        return math.inf

    def gained(per_hour: float) -> float:
        in_making = per_hour / 3600 * making_s

        def lost(size: int) -> float:
            return size * held - per_hour * served(size, in_making) * saved

        return -lost(best_size(lost, in_making, 1 << 20))

    low = high = held / saved  # one sandbox that is always found
    while gained(high) < 0:
        low, high = high, high * 1.25
        if high / 3600 * making_s > _MOST_IN_MAKING:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if gained(middle) >= 0 else (middle, high)
    return high


def pays_estimate(saved: Estimate, held: float, making_s: float) -> Estimate:
    """The same with the interval of what is saved: the more, the sooner."""
    if saved.low is None or saved.high is None:
        return Estimate(pays_from(saved.value, held, making_s))
    ends = (pays_from(saved.high, held, making_s), pays_from(saved.low, held, making_s))
    return Estimate(pays_from(saved.value, held, making_s), *ends)
