"""Which tasks are asked for, and when: drawn from seed and block alone, so that every mode of a cell meets the same ones."""

import itertools
import random
from collections.abc import Sequence

from excise.meter.pool_records import PoolCell


def weights(count: int, exponent: float) -> list[float]:
    """Zipf: the k-th task is asked for in proportion to k^-exponent; 0 is all alike."""
    return [(rank + 1) ** -exponent for rank in range(count)]


def tasks_of(cell: PoolCell, count: int, single: Sequence[int], seed: int, block: int) -> tuple[list[int], list[int]]:
    """The tasks of the claims that lead in, and of those that are measured; `single`: which to choose from for one alone."""
    if cell.zipf is None:
        one = random.Random(f"{seed}:{block}:one").choice(single)  # noqa: S311 - a choice, not a secret
        return [one] * cell.lead, [one] * cell.claims
    # Two sources: how many lead in (more for more memory) does not change which are measured.
    leading, measured = (random.Random(f"{seed}:{block}:{cell.zipf!r}:{part}") for part in ("lead", "tasks"))  # noqa: S311
    by = list(itertools.accumulate(weights(count, cell.zipf)))
    everyone: Sequence[int] = range(count)
    return (
        leading.choices(everyone, cum_weights=by, k=cell.lead),
        measured.choices(everyone, cum_weights=by, k=cell.claims),
    )
