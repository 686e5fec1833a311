# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalOperand=false, reportOptionalMemberAccess=false

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.meter.records import Cell
from excise.stats.comparison import compare_runs, judge, quotient
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.run import Run
from made_results import RESET_MS, write

above_zero = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.11, 1.5, "slower"),
        (1.09, 9.0, "unsure"),
        (0.95, 1.05, "same"),
        (0.5, 0.90, "faster"),
        (0.5, 0.95, "unsure"),
        (None, None, "unsure"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, verdict):
    assert judge(Estimate(1.0, low, high), 1.10) == verdict


def test_errors_add_as_squares_on_the_logarithmic_scale():
    found = quotient(Estimate(2.0, 2 / math.e**3, 2 * math.e**3), Estimate(1.0, math.e**-4, math.e**4))
    assert found.value == 2
    assert found.low == pytest.approx(2 * math.e**-5)
    assert found.high == pytest.approx(2 * math.e**5)


def test_without_an_interval_there_is_none():
    assert quotient(Estimate(2.0), Estimate(1.0, 0.5, 2.0)) == Estimate(2.0)


@given(above_zero, st.floats(1, 10), st.floats(1, 10))
def test_against_itself_one_is_inside_and_swapping_turns_it_over(value, down, up):
    one, other = Estimate(value, value / down, value * up), Estimate(3 * value, 3 * value / up, 3 * value * down)
    same = quotient(one, one)
    assert same.low <= 1 <= same.high
    there, back = quotient(one, other), quotient(other, one)
    assert there.low == pytest.approx(1 / back.high)


def test_the_quotients_interval_holds_a_known_change():
    chance = random.Random(2)  # noqa: S311 - a simulation
    held, experiments = 0, 800
    for _ in range(experiments):
        runs = [
            Blocks({"a": [chance.lognormvariate(-0.02, 0.2) * mean for _ in range(12)], "n": [1.0] * 12}).estimate(
                lambda sums: sums["a"] / sums["n"], POSITIVE
            )
            for mean in (3.0, 2.0)
        ]
        found = quotient(*runs)
        held += found.low <= 1.5 <= found.high
    assert 0.93 <= held / experiments <= 0.975


def test_a_sandbox_that_lives_on_is_compared_by_its_reset_and_not_by_a_start(tmp_path):
    cells = (Cell(address="chroot", workload="t2"), Cell(address="docker", workload="t2", reset="git"))
    run = Run.read(write(tmp_path / "r", cells))
    found = {change.metric: change for change in compare_runs(run, run).changes}
    assert set(found) == {"total", "reset", "action"}
    assert found["reset"].before.value == pytest.approx(RESET_MS / (2.0 + 60.0), rel=0.1)
