"""Policies: how many to hold and what to let go of; under the caps, the same for the same view; contradictions are refused."""

import copy
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from excise.spec import Stage
from excise.substrates.pool.policies.holding import demand, fixed, quantile, schedule, targets, worth
from excise.substrates.pool.policies.leaving import evict, expired, next_expiry_s
from excise.substrates.pool.policies.view import Coming, Policy, Seen, View

KEYS = st.sampled_from("abcd")
SEEN = st.builds(
    Seen,
    stage=st.sampled_from(Stage),
    idle=st.integers(0, 5),
    filling=st.integers(0, 3),
    rate_per_s=st.floats(0, 50),
    refill_s=st.floats(0, 60),
    saved_s=st.floats(0, 60),
    bytes=st.integers(0, 100),
    last_asked_s=st.floats(0, 100),
)
COMING = st.builds(Coming, key=KEYS, count=st.integers(0, 16), at_s=st.one_of(st.none(), st.floats(0, 500)))
POLICIES = st.builds(
    Policy,
    fixed=st.dictionaries(KEYS, st.integers(0, 8)),
    percentile=st.one_of(st.none(), st.floats(0.01, 0.999)),
)


@st.composite
def views(draw: st.DrawFn) -> View:
    states = draw(st.dictionaries(KEYS, SEEN))
    kept = sum(seen.idle + seen.filling for seen in states.values())
    kept_bytes = sum((seen.idle + seen.filling) * seen.bytes for seen in states.values())
    return View(
        now_s=100.0,
        states=states,
        coming=tuple(draw(st.lists(COMING, max_size=5))),
        count=kept + draw(st.integers(0, 10)),
        cap=draw(st.integers(1, 40)),
        memory_bytes=kept_bytes + draw(st.integers(0, 200)),
        memory_cap_bytes=draw(st.one_of(st.none(), st.integers(1, 2000))),
        parallel=draw(st.integers(1, 4)),
    )


def view(states: Mapping[str, Seen], coming: tuple[Coming, ...] = (), cap: int = 100, parallel: int = 1) -> View:
    return View(now_s=100.0, states=states, coming=coming, cap=cap, parallel=parallel)


def seen(**fields: Any) -> Seen:
    return Seen(stage=Stage.DEPS, **fields)


# ---- under the caps


@given(views(), POLICIES)
def test_targets_and_what_is_claimed_are_never_above_the_caps(seen: View, policy: Policy) -> None:
    held = targets(seen, policy)
    claimed = seen.count - sum(each.idle + each.filling for each in seen.states.values())
    assert sum(held.values()) <= max(0, seen.cap - claimed)
    if seen.memory_cap_bytes is not None:
        kept_bytes = sum((each.idle + each.filling) * each.bytes for each in seen.states.values())
        claimed_bytes = seen.memory_bytes - kept_bytes
        held_bytes = sum(count * seen.states[key].bytes for key, count in held.items())
        assert held_bytes <= max(0, seen.memory_cap_bytes - claimed_bytes)


@given(views(), POLICIES)
def test_targets_are_what_some_policy_asks_for_and_all_of_it_where_there_is_place(seen: View, policy: Policy) -> None:
    wishes = [fixed(seen, policy.fixed), schedule(seen)]
    if policy.percentile is not None:
        wishes.append(demand(seen, policy.percentile))
    most = {key: max(wish.get(key, 0) for wish in wishes) for key in seen.states}
    held = targets(seen, policy)
    assert all(count <= most[key] for key, count in held.items())
    claimed = seen.count - sum(each.idle + each.filling for each in seen.states.values())
    if seen.memory_cap_bytes is None:
        assert sum(held.values()) == min(sum(most.values()), max(0, seen.cap - claimed))


@given(views(), POLICIES, st.integers(0, 9), st.integers(0, 500))
def test_policies_are_pure(seen: View, policy: Policy, need_count: int, need_bytes: int) -> None:
    again = copy.deepcopy(seen)
    assert targets(seen, policy) == targets(again, policy)
    assert evict(seen, need_count, need_bytes) == evict(again, need_count, need_bytes)
    assert expired(seen, 10.0) == expired(again, 10.0)
    assert seen == again


def test_places_go_to_what_is_fixed_then_what_comes_then_what_is_worth_most() -> None:
    wanted = seen(rate_per_s=1.0, refill_s=3.0, saved_s=10.0, bytes=1)
    dear = seen(rate_per_s=1.0, refill_s=3.0, saved_s=10.0, bytes=5)
    looked = {"fixed": seen(), "soon": seen(), "next": seen(refill_s=1.0), "dear": dear, "wanted": wanted}
    policy = Policy(fixed={"fixed": 2}, percentile=0.5)
    groups = (Coming(key="next", count=1, at_s=101.0), Coming(key="soon", count=2))
    order = ["fixed", "fixed", "soon", "soon", "next", "wanted", "dear", "wanted", "dear", "wanted", "dear"]
    for cap in range(1, len(order) + 2):
        assert targets(view(looked, coming=groups, cap=cap), policy) == Counter(order[:cap])


def test_memory_that_is_claimed_is_not_given_out_again() -> None:
    looked = View(now_s=0, states={"a": seen(bytes=10)}, count=3, cap=10, memory_bytes=30, memory_cap_bytes=55)
    assert targets(looked, Policy(fixed={"a": 5})) == {"a": 2}


# ---- demand


@given(st.floats(0, 2000), st.floats(0.001, 0.999))
def test_a_quantile_is_the_least_count_that_suffices(mean: float, percentile: float) -> None:
    count = quantile(mean, percentile)
    if mean <= 500:
        assert _at_most(count, mean) >= percentile - 1e-9
        assert count == 0 or _at_most(count - 1, mean) < percentile + 1e-9
    else:
        assert abs(_at_most(count, mean) - percentile) < 0.05


def _at_most(count: int, mean: float) -> float:
    logs = (number * math.log(mean) - mean - math.lgamma(number + 1) for number in range(count + 1)) if mean else (0.0,)
    return math.fsum(math.exp(each) for each in logs)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0.01, 0.99))
def test_more_demand_never_asks_for_less(one: float, other: float, percentile: float) -> None:
    less, more = sorted((one, other))
    held = demand(view({"less": seen(rate_per_s=less, refill_s=1), "more": seen(rate_per_s=more, refill_s=1)}), percentile)
    assert held.get("less", 0) <= held.get("more", 0)


@given(st.floats(0, 700), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_higher_percentile_never_asks_for_less(mean: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert quantile(mean, less) <= quantile(mean, more)


def test_demand_is_what_is_asked_for_while_one_is_refilled() -> None:
    slow, quick = seen(rate_per_s=2.0, refill_s=5.0), seen(rate_per_s=2.0, refill_s=0.5)
    assert demand(view({"slow": slow, "quick": quick, "never": seen(refill_s=60)}), 0.95) == {"slow": 15, "quick": 3}


# ---- schedule


def test_groups_are_prefetched_in_their_sizes_when_they_are_due() -> None:
    known = {"a": seen(refill_s=10.0), "b": seen(refill_s=10.0)}
    due, later = Coming(key="a", count=8, at_s=150.0), Coming(key="b", count=8, at_s=1000.0)
    assert schedule(view(known, coming=(later, due))) == {"a": 8}
    assert schedule(view(known, coming=(due, Coming(key="a", count=8, at_s=160.0)))) == {"a": 16}
    assert schedule(view(known, coming=(Coming(key="b", count=4), Coming(key="c", count=4)))) == {"b": 4}


def test_a_group_behind_others_is_begun_earlier_and_with_more_hands_later() -> None:
    known = {"a": seen(refill_s=10.0), "b": seen(refill_s=10.0)}
    second = Coming(key="b", count=2, at_s=200.0)
    assert schedule(view(known, coming=(second,))) == {}
    before = Coming(key="a", count=8, at_s=110.0)
    assert schedule(view(known, coming=(before, second))) == {"a": 8, "b": 2}
    assert schedule(view(known, coming=(before, second), parallel=8)) == {"a": 8}


# ---- letting go


@given(views(), st.integers(0, 20), st.integers(0, 500))
def test_eviction_frees_what_is_needed_and_takes_the_least_worth_first(looked: View, need_count: int, need_bytes: int) -> None:
    gone = evict(looked, need_count, need_bytes)
    left = {key: each.idle - gone.count(key) for key, each in looked.states.items()}
    assert all(count >= 0 for count in left.values())
    freed_bytes = sum(looked.states[key].bytes for key in gone)
    if any(left.values()):
        assert len(gone) >= need_count
        assert freed_bytes >= need_bytes
    if gone:  # not one more than it takes
        assert len(gone) - 1 < need_count or freed_bytes - looked.states[gone[-1]].bytes < need_bytes
    for key in gone:
        assert all(worth(looked.states[key]) <= worth(looked.states[other]) for other, count in left.items() if count)


def test_among_equals_what_was_asked_for_longest_ago_goes_first() -> None:
    looked = view({"new": seen(idle=1, last_asked_s=90), "old": seen(idle=1, last_asked_s=10)})
    assert evict(looked, 1, 0) == ("old",)


def test_what_was_let_go_of_is_not_wanted_again_at_once() -> None:
    equal = {name: seen(idle=1, last_asked_s=asked_s) for name, asked_s in (("a", 10), ("b", 90), ("c", 50))}
    (gone,) = evict(view(equal, cap=3), 1, 0)
    held = targets(view(equal, cap=2), Policy(fixed=dict.fromkeys(equal, 1)))
    assert gone not in held
    assert len(held) == 2


def test_what_nobody_asked_for_expires_unless_it_is_said_to_come() -> None:
    old, new = seen(idle=2, last_asked_s=10.0), seen(idle=1, last_asked_s=95.0)
    soon = seen(idle=1, last_asked_s=5.0)
    looked = view({"old": old, "soon": soon, "new": new, "none": seen()}, (Coming(key="soon", count=1),))
    assert expired(looked, 90.0) == ("old",)
    assert expired(looked, 90.1) == ()
    assert (next_expiry_s(looked, 90.1), next_expiry_s(looked, 90.0)) == (100.1, 185.0)
