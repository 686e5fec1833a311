"""A number that rests on several runs: each run's blocks are left out in turn, and the runs' errors add up.

Within a run everything stays paired by block, as in `stats.jackknife`; two runs have nothing in common, so their variances add.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from excise.stats.breakeven import BreakEven, judged, undecided
from excise.stats.estimate import Estimate
from excise.stats.jackknife import FEWEST_BLOCKS, PLAIN, POSITIVE, Blocks, Scale, Sums, standard_error, student
from excise.stats.projection import Line

Samples = Mapping[str, Sums]
"""By run: the sums of its columns."""


@dataclass(frozen=True)
class Evidence:
    """Blocks by the run that they are of."""

    parts: Mapping[str, Blocks]

    @property
    def enough(self) -> bool:
        """Whether there are blocks enough for an interval."""
        return all(blocks.n >= FEWEST_BLOCKS for blocks in self.parts.values())

    @cached_property
    def whole(self) -> Samples:
        return {run: blocks.sums for run, blocks in self.parts.items()}

    @cached_property
    def without(self) -> list[list[Samples]]:
        """For each run, what there is without each of its blocks."""
        return [[{**self.whole, run: sums} for sums in blocks.without_each] for run, blocks in self.parts.items()]

    def estimate(self, of: Callable[[Samples], float], scale: Scale = POSITIVE) -> Estimate:
        """`of` all blocks, with its 95 % interval; without one where a run has too few blocks."""
        value = of(self.whole)
        if not self.enough:
            return Estimate(value)
        without = [[of(one) for one in run] for run in self.without]
        if not all(map(scale.holds, (value, *(x for run in without for x in run)))):
            scale = PLAIN
        error = math.sqrt(sum(standard_error([scale.to(x) for x in run]) ** 2 for run in without))
        reach = student(min(map(len, without)) - 1) * error
        low, high = sorted((scale.back(scale.to(value) - reach), scale.back(scale.to(value) + reach)))
        return Estimate(value, low, high)

    def crossing(self, more: Callable[[Samples], Line]) -> BreakEven:
        """Where `more`, what the second costs more than the first, is nothing: by Fieller, as for two rows of a run."""
        found = more(self.whole)
        return judged(found, undecided(found, [[more(one) for one in run] for run in self.without]) if self.enough else None)

    def beside(self, other: "Evidence") -> "Evidence | None":
        """Both, paired within the runs that both rest on: columns `a.` and `b.`. None: they share no block of such a run."""
        parts: dict[str, Blocks] = {}
        for run in (*self.parts, *(run for run in other.parts if run not in self.parts)):
            mine, theirs = self.parts.get(run), other.parts.get(run)
            if mine is not None and theirs is not None:
                both = mine.beside(theirs)
                if both is None:
                    return None
                parts[run] = both
            elif mine is not None:
                parts[run] = mine.named("a.")
            elif theirs is not None:
                parts[run] = theirs.named("b.")
        return Evidence(parts)


def of_first(samples: Samples) -> Samples:
    """What `beside` put under `a.`."""
    return _under("a.", samples)


def of_second(samples: Samples) -> Samples:
    """What `beside` put under `b.`."""
    return _under("b.", samples)


def _under(prefix: str, samples: Samples) -> Samples:
    reach = len(prefix)
    return {
        run: {name[reach:]: value for name, value in sums.items() if name.startswith(prefix)} for run, sums in samples.items()
    }
