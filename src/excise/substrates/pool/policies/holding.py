"""How many of each state to hold: fixed, by demand, by schedule; and the three joined under the caps."""

import math
from collections.abc import Iterator, Mapping
from itertools import repeat
from statistics import NormalDist

from excise.substrates.pool.policies.view import Coming, Policy, Seen, View

_MOST = 1 << 16  # a demand beyond every cap
LEAD = 1.5
"""Prefetch this much earlier than the refills are expected to take: half of the refill times lie above their median."""


def fixed(view: View, wanted: Mapping[str, int]) -> dict[str, int]:
    """So many of each, of the states that the pool knows how to make."""
    return {key: count for key, count in wanted.items() if key in view.states}


def demand(view: View, percentile: float) -> dict[str, int]:
    """Enough of each state that a refill comes in time, in this part of all cases.

    While one is refilled, rate x refill time more are expected to be asked for; how many there are is Poisson's.
    """
    held: dict[str, int] = {}
    for key, seen in view.states.items():
        count = quantile(seen.rate_per_s * seen.refill_s, percentile)
        if count:
            held[key] = count
    return held


def quantile(mean: float, percentile: float) -> int:
    """The least count that a Poisson variable does not exceed in `percentile` of all cases."""
    if mean <= 0:
        return 0
    if mean > 500:  # exp(-mean) comes near the least float; a normal one is the same to the whole number by then
        return min(_MOST, math.ceil(mean + math.sqrt(mean) * _normal(percentile)))
    count, term = 0, math.exp(-mean)
    below = term
    while below < percentile and count < _MOST:
        count += 1
        term *= mean / count
        if term == 0.0:
            break  # what is left of the sum is rounding
        below += term
    return count


def _normal(percentile: float) -> float:
    return NormalDist().inv_cdf(percentile)


def schedule(view: View) -> dict[str, int]:
    """Groups that are due by the time they could be made, in the order in which they come; those without a time are due."""
    held: dict[str, int] = {}
    work_s = 0.0
    for group in _in_order(view):
        seen = view.states[group.key]
        work_s += seen.refill_s * group.count / max(1, view.parallel)
        if group.at_s is None or group.at_s <= view.now_s + seen.refill_s + LEAD * work_s:
            held[group.key] = held.get(group.key, 0) + group.count
    return held


def _in_order(view: View) -> list[Coming]:
    known = (group for group in view.coming if group.key in view.states and group.count > 0)
    return sorted(known, key=lambda group: view.now_s if group.at_s is None else group.at_s)


def targets(view: View, policy: Policy) -> dict[str, int]:
    """How many of each state should be idle: the most that any policy asks for, cut where the caps are.

    What is claimed has its place already; the others are given out one by one: first to what was fixed, then to what is said
    to come, group by group, then to demand.
    """
    idle = sum(seen.idle + seen.filling for seen in view.states.values())
    idle_bytes = sum((seen.idle + seen.filling) * seen.bytes for seen in view.states.values())
    places = max(0, view.cap - max(0, view.count - idle))
    free_bytes = math.inf
    if view.memory_cap_bytes is not None:
        free_bytes = view.memory_cap_bytes - max(0, view.memory_bytes - idle_bytes)
    held: dict[str, int] = {}
    for key in _one_by_one(view, policy):
        if places <= 0:
            break
        if (size := view.states[key].bytes) <= free_bytes:
            held[key] = held.get(key, 0) + 1
            places -= 1
            free_bytes -= size
    return held


def _one_by_one(view: View, policy: Policy) -> Iterator[str]:
    """Every place that is asked for, in the order in which they are given; none for what an earlier policy asked for too."""
    asked = fixed(view, policy.fixed)
    yield from _in_turn(view, asked)
    for key, count in schedule(view).items():
        # A group is of use when it is whole: the next one's comes after it.
        yield from repeat(key, count - asked.get(key, 0))
        asked[key] = max(count, asked.get(key, 0))
    if policy.percentile is not None:
        wish = demand(view, policy.percentile)
        yield from _in_turn(view, {key: count - asked.get(key, 0) for key, count in wish.items()})


def _in_turn(view: View, wish: Mapping[str, int]) -> Iterator[str]:
    """The most worth first, and one of each before a second of any: the first is the one that is found most often."""
    # Among equals what was asked for last: what `evict` lets go of first must not be wanted again at once.
    order = sorted(wish, key=lambda key: (-worth(view.states[key]), -view.states[key].last_asked_s, key))
    for turn in range(min(view.cap, max(wish.values(), default=0))):
        yield from (key for key in order if wish[key] > turn)


def worth(seen: Seen) -> float:
    """Seconds that one idle sandbox of this state saves each second, for each byte it takes."""
    return seen.rate_per_s * seen.saved_s / max(1, seen.bytes)
