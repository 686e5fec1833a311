"""Which tasks are asked for, and when: drawn from seed and block alone, so that every mode of a cell meets the same ones."""

import itertools
import random
from collections.abc import Sequence

from excise.meter.pool_records import PoolCell


def weights(count: int, exponent: float) -> list[float]:
    """Zipf: the k-th task is asked for in proportion to k^-exponent; 0 is all alike."""
    return [(rank + 1) ** -exponent for rank in range(count)]


def asked(cell: PoolCell, count: int, single: Sequence[int], seed: int, block: int) -> list[int]:
    """The tasks that are asked for in one block; `single`: which to choose from where it is one alone."""
    if cell.zipf is None:
        one = random.Random(f"{seed}:{block}:one").choice(single)  # noqa: S311 - a choice, not a secret
        return [one] * cell.claims
    drawn = random.Random(f"{seed}:{block}:{cell.zipf!r}:asked")  # noqa: S311 - as above
    return drawn.choices(range(count), cum_weights=_cumulated(count, cell.zipf), k=cell.claims)


def asked_before(cell: PoolCell, count: int, seed: int, block: int) -> list[int]:
    """The last `cell.lead` different tasks that were asked for before, as if the pool had lived for long.

    Claims are drawn one by one and alike, so looking back from any moment is the same as looking forward from another. Who
    has more room has what others have, and more.
    """
    if cell.zipf is None:
        return []
    drawn = random.Random(f"{seed}:{block}:{cell.zipf!r}:before")  # noqa: S311 - as above
    by, found = _cumulated(count, cell.zipf), dict[int, None]()
    while len(found) < min(cell.lead, count):
        found.setdefault(drawn.choices(range(count), cum_weights=by)[0])
    return list(found)


def _cumulated(count: int, exponent: float) -> list[float]:
    return list(itertools.accumulate(weights(count, exponent)))
