# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from excise.stats.breakeven import break_even
from excise.stats.jackknife import Blocks
from excise.stats.projection import Costs, Line, line_of
from synthetic_run import cell, make_run

seconds = st.floats(1e-3, 1e3)


def line(fixed_s, per_action_s):
    return Costs(Line(fixed_s=fixed_s, per_action_s=per_action_s))


def test_by_hand():
    # 10 + 1 n = 40 + 0.4 n at n = 50; beyond that the second is cheaper.
    found = break_even(line(10, 1), line(40, 0.4))
    assert (found.outcome, found.length.value, found.above) == ("at", 50, True)
    back = break_even(line(40, 0.4), line(10, 1))
    assert (back.outcome, back.length.value, back.above) == ("at", 50, False)


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        ((5, 0.5), "always"),
        ((20, 2), "never"),
        ((10, 1), "equal"),
        ((10, 0.9), "always"),
        ((9, 1), "always"),
        ((11, 1), "never"),
    ],
)
def test_lines_that_do_not_cross_have_an_answer_and_no_length(second, outcome):
    found = break_even(line(10, 1), line(*second))
    assert (found.outcome, found.length) == (outcome, None)


def test_lines_that_cross_before_the_first_action_do_not_cross():
    # 0.5 + 1 n = 0 + 2 n at n = 0.5: with one action or more the first is cheaper.
    assert break_even(line(0.5, 1), line(0, 2)).outcome == "never"


@given(seconds, seconds, seconds, seconds)
def test_at_the_break_even_both_cost_the_same_and_swapping_them_swaps_the_answer(a, b, c, d):
    first, second = line(a, b), line(c, d)
    there, back = break_even(first, second), break_even(second, first)
    if there.outcome == "at":
        assume(there.length.value < 1e9)
        assert first.line.at(there.length.value) == pytest.approx(second.line.at(there.length.value), rel=1e-6)
        longer = there.length.value * 1.01 + 1
        assert (second.line.at(longer) < first.line.at(longer)) == there.above
        assert (back.outcome, back.length.value) == ("at", pytest.approx(there.length.value))
    else:
        assert back.outcome == {"always": "never", "never": "always", "equal": "equal"}[there.outcome]


def test_from_rows_with_interval():
    run = make_run({cell("chroot"): (1, 1), cell("quick-start"): (100, 60), cell("quick-act"): (2000, 10)})
    found = break_even(run["quick-start"].costs, run["quick-act"].costs)
    assert (found.outcome, found.above, found.certain) == ("at", True, True)
    assert found.length.low < found.length.value < found.length.high
    assert found.length.value == pytest.approx(1900 / 50, rel=0.05)


def test_where_actions_cannot_be_told_apart_the_interval_has_no_end():
    run = make_run({cell("chroot"): (1, 1), cell("a"): (100, 50), cell("b"): (200, 50)}, blocks=12, spread=0.2)
    found = break_even(run["a"].costs, run["b"].costs)
    assert not found.certain
    if found.outcome == "at":
        assert found.length.high == math.inf


def test_two_rows_that_are_far_apart_are_certainly_so():
    run = make_run({cell("chroot"): (1, 1), cell("a"): (100, 50), cell("b"): (300, 90)})
    assert break_even(run["a"].costs, run["b"].costs).outcome == "never"
    assert break_even(run["a"].costs, run["b"].costs).certain
    assert break_even(run["b"].costs, run["a"].costs).outcome == "always"


def test_few_blocks_give_a_length_without_interval():
    run = make_run({cell("chroot"): (1, 1), cell("a"): (100, 60), cell("b"): (2000, 10)}, blocks=5)
    found = break_even(run["a"].costs, run["b"].costs)
    assert (found.length.low, found.length.high, found.certain) == (None, None, False)


def costs(chance, busy, fixed_s, per_action_s):
    n = len(busy)
    noise = [[b * chance.lognormvariate(-0.02, 0.2) for b in busy] for _ in range(2)]
    columns = {
        "rollouts": [1.0] * n,
        "actions": [10.0] * n,
        "fixed": [fixed_s * x for x in noise[0]],
        "acting": [10 * per_action_s * x for x in noise[1]],
    }
    blocks = Blocks(columns)
    return Costs(line_of(blocks.sums), 10, blocks)


def test_the_interval_holds_a_known_length():
    chance = random.Random(3)  # noqa: S311 - a simulation
    held, experiments = 0, 600
    for _ in range(experiments):
        busy = [chance.lognormvariate(0, 0.3) for _ in range(20)]
        found = break_even(costs(chance, busy, 1.0, 0.10), costs(chance, busy, 4.0, 0.04)).length
        held += found.low <= 50 <= found.high
    assert 0.925 <= held / experiments <= 0.975
