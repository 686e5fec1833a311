# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import pytest

from excise.stats.proportion import wilson


def test_wilson_agrees_with_the_published_example():
    # 0 of 10: the upper end is z^2 / (n + z^2).
    found = wilson(0, 10)
    assert found.value == 0
    assert found.low == pytest.approx(0, abs=1e-12)
    assert found.high == pytest.approx(3.8415 / 13.8415, abs=1e-4)


def test_all_successes_are_not_certainty():
    found = wilson(30, 30)
    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.88 < found.low < 0.89


def test_without_a_trial_nothing_is_said():
    assert wilson(0, 0) is None
