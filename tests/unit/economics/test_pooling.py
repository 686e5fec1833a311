# A None where a number is expected fails the test: that is what the test is for.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.economics.pooling import best_size, pays_estimate, pays_from, served
from excise.stats.estimate import Estimate


def test_served_is_the_share_of_claims_that_find_fewer_in_the_making_than_there_are():
    # Poisson of mean 1: P(0) = 1/e, P(0 or 1) = 2/e.
    assert served(0, 1.0) == 0
    assert served(1, 1.0) == pytest.approx(math.exp(-1))
    assert served(2, 1.0) == pytest.approx(2 * math.exp(-1))
    assert served(1, 0.0) == 1
    assert served(2000, 1000.0) == pytest.approx(1)


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(0, 300))
def test_a_larger_pool_and_fewer_claims_serve_more(size, in_making):
    assert 0 <= served(size, in_making) <= served(size + 1, in_making) <= 1
    assert served(size, in_making) >= served(size, in_making + 1) - 1e-12


def test_the_best_size_is_the_cheapest_and_of_equals_the_smallest():
    assert best_size(lambda size: abs(size - 7), 10.0, 100) == 7
    assert best_size(lambda _: 1.0, 10.0, 100) == 1
    assert best_size(lambda size: -size, 10.0, 3) == 3


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(1e-3, 60.0))
def test_where_a_pool_begins_to_pay_it_does_and_below_it_does_not(saved, held, making_s):
    found = pays_from(saved, held, making_s)
    if found == math.inf:
        return

    def gained(per_hour):
        in_making = per_hour / 3600 * making_s

        def lost(size):
            return size * held - per_hour * served(size, in_making) * saved

        return -lost(best_size(lost, in_making, 1 << 20))

    assert gained(found) >= 0 or found == pytest.approx(held / saved)
    assert gained(found / 1.01) <= 1e-9 * held


def test_a_pool_that_saves_nothing_or_holds_too_much_never_pays():
    assert pays_from(0.0, 1.0, 1.0) == math.inf
    assert pays_from(-1.0, 0.0, 1.0) == math.inf
    assert pays_from(1.0, 3601.0, 1.0) == math.inf
    assert pays_from(1.0, 0.0, 1.0) == 0


def test_the_more_is_saved_the_sooner_it_pays():
    found = pays_estimate(Estimate(1.0, 0.5, 2.0), 10.0, 1.0)
    assert found.low < found.value < found.high
    assert pays_estimate(Estimate(1.0), 10.0, 1.0).low is None
