# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.stats.quantile import clustered, fewest, interval_ranks, point, quantile

values = st.floats(0.001, 1000.0)


def test_p95_of_a_hundred_spans_ranks_90_to_99():
    assert interval_ranks(100, 0.95) == (90, 99)


def test_ranks_cover_what_they_promise_exactly():
    # P(low <= B <= high - 1) for a fair coin, summed by hand from Pascal's triangle.
    low, high = interval_ranks(10, 0.5)
    assert (low, high) == (2, 9)
    assert sum([1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1][low:high]) / 1024 >= 0.95


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.95, 59)])
def test_too_few_trials_give_no_number_at_all(q, n):
    assert fewest(q) == n
    assert quantile([1.0] * (n - 1), q) is None
    assert quantile([1.0] * n, q) is not None


def test_large_n_does_not_underflow():
    low, high = interval_ranks(20_000, 0.95)
    assert 18_900 < low < 19_000 < high < 19_100


def test_the_point_is_interpolated_between_neighbours():
    assert point([1.0, 2.0, 4.0], 0.75) == 3.0
    assert point([5.0], 0.95) == 5.0


@pytest.mark.parametrize(("q", "truth"), [(0.5, 0.693147), (0.95, 2.995732)])
def test_intervals_cover_a_known_quantile(q, truth):
    chance = random.Random(1)  # noqa: S311 - a simulation
    trials, held = 600, 0
    for _ in range(trials):
        found = quantile([chance.expovariate(1.0) for _ in range(100)], q)
        held += found.low <= truth <= found.high
    # At least 95 % by construction; three standard errors below that would be 92.3 %, and 99.5 % would be too wide.
    assert 0.93 <= held / trials <= 0.985


@given(st.lists(values, min_size=6, max_size=80))
def test_with_a_value_a_block_it_is_the_order_statistics_own(some):
    assert clustered([[x] for x in some], 0.5) == quantile(some, 0.5)


@given(st.lists(values, min_size=8, max_size=40, unique=True), st.integers(2, 6))
def test_saying_everything_twice_tells_nothing_more(some, times):
    once, often = quantile(some, 0.5), clustered([[x] * times for x in some], 0.5)
    assert (often.low, often.high) == (once.low, once.high)


@given(st.lists(st.lists(values, min_size=1, max_size=5), min_size=6, max_size=40), st.sampled_from([0.5, 0.95]))
def test_the_value_is_within_its_interval(blocks, q):
    found = clustered(blocks, q)
    if found is not None:
        assert found.low <= found.value <= found.high


def test_independent_values_of_a_block_count_each():
    chance = random.Random(4)  # noqa: S311 - a simulation
    blocks = [[chance.random() for _ in range(10)] for _ in range(40)]
    flat = quantile([x for block in blocks for x in block], 0.5)
    found = clustered(blocks, 0.5)
    assert found.high - found.low < 1.6 * (flat.high - flat.low)
    assert clustered(blocks, 0.95) is not None
