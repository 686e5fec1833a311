"""When rollouts arrive and what each asks for, fixed before the first of them: nothing that happens can move an arrival."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import msgspec

from excise.errors import SpecError
from excise.loading.specs import Wanted
from excise.spec import Spec

MOST = 1_000_000
"""Of one load: what a slip of the pen, such as burst:1e9, would ask for beyond it."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout that is to begin `at_s` after the load does."""

    at_s: float
    name: str
    """Of its spec, for whoever reads the table."""
    spec: Spec
    hold_s: float
    owner: str = ""


def poisson(rate_per_s: float, for_s: float, wanted: Sequence[Wanted], *, hold_s: float, seed: int) -> tuple[Arrival, ...]:
    """Exponential waits between arrivals, until `for_s`."""
    if not 0 < rate_per_s < math.inf:
        raise SpecError(f"poisson:{rate_per_s:g} is no rate: write arrivals a second, as poisson:4")
    if rate_per_s * for_s > MOST:
        raise SpecError(f"poisson:{rate_per_s:g} for {for_s:g} s is above {MOST:,} arrivals: lower the rate or --for")
    drawn = random.Random(f"{seed}:poisson:{rate_per_s!r}")  # noqa: S311 - times, not secrets
    waits = (drawn.expovariate(rate_per_s) for _ in itertools.count())
    times = itertools.takewhile(lambda at_s: at_s < for_s, itertools.accumulate(waits))
    return _filled(times, wanted, hold_s=hold_s, seed=seed)


def burst(
    count: int, every_s: float | None, for_s: float, wanted: Sequence[Wanted], *, hold_s: float, seed: int
) -> tuple[Arrival, ...]:
    """`count` at once at the beginning, and again after each `every_s` within `for_s`, if it is said."""
    if count < 1:
        raise SpecError(f"burst:{count} brings nobody: write how many arrive at once, as burst:64")
    if every_s is not None and not 0 < every_s < math.inf:
        raise SpecError(f"burst:{count}/{every_s:g}: the time between bursts is above 0, as in burst:64/20s")
    waves = 1 if every_s is None else max(1, math.ceil(for_s / every_s))
    if count * waves > MOST:
        raise SpecError(f"burst:{count} is {count * waves:,} arrivals, above {MOST:,}: lower the number or --for")
    times = (wave * (every_s or 0.0) for wave in range(waves) for _ in range(count))
    return _filled(times, wanted, hold_s=hold_s, seed=seed)


def _filled(times: Iterator[float], wanted: Sequence[Wanted], *, hold_s: float, seed: int) -> tuple[Arrival, ...]:
    """Each time with a spec drawn by weight. Times have draws of their own: another mix meets the same arrivals."""
    drawn = random.Random(f"{seed}:specs")  # noqa: S311 - see above
    weights = list(itertools.accumulate(one.weight for one in wanted))
    found: list[Arrival] = []
    for at_s in times:
        one = drawn.choices(wanted, cum_weights=weights)[0]
        found.append(Arrival(at_s=at_s, name=one.name, spec=one.spec, hold_s=hold_s, owner=one.owner))
    return tuple(found)
