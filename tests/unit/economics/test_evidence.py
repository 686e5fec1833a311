# A None where a number is expected fails the test: that is what the test is for.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false

import math
import random

import pytest

from excise.economics.evidence import Evidence, of_first, of_second
from excise.stats.jackknife import POSITIVE, Blocks


def blocks(seed, n=20, ids=None, scale=1.0):
    chance = random.Random(seed)  # noqa: S311 - a simulation
    return Blocks({"x": [scale * chance.lognormvariate(0, 0.2) for _ in range(n)], "n": [1.0] * n}, ids)


def mean(samples, run="r"):
    return samples[run]["x"] / samples[run]["n"]


def test_one_run_alone_has_the_interval_that_it_always_had():
    own = blocks(1)
    assert Evidence({"r": own}).estimate(mean) == own.estimate(lambda sums: sums["x"] / sums["n"], POSITIVE)


def test_errors_of_two_runs_add_up():
    first, second = blocks(1), blocks(2)
    both = Evidence({"r": first, "s": second})
    ratio = both.estimate(lambda samples: mean(samples, "r") / mean(samples, "s"))
    alone = Evidence({"r": first}).estimate(mean)
    assert ratio.high / ratio.low > alone.high / alone.low


def test_few_blocks_in_any_run_give_no_interval():
    assert Evidence({"r": blocks(1), "s": blocks(2, n=5)}).estimate(mean).low is None


def test_beside_pairs_within_runs_and_keeps_what_only_one_has():
    mine, theirs = Evidence({"r": blocks(1), "s": blocks(2)}), Evidence({"r": blocks(1, scale=3.0), "t": blocks(3)})
    both = mine.beside(theirs)
    assert both is not None
    ratio = both.estimate(lambda samples: mean(of_second(samples)) / mean(of_first(samples)))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((3.0, 3.0, 3.0))
    assert set(both.parts) == {"r", "s", "t"}


def test_two_that_share_a_run_and_no_block_of_it_cannot_be_paired():
    mine, theirs = Evidence({"r": blocks(1, 6, range(6))}), Evidence({"r": blocks(1, 6, range(6, 12))})
    assert mine.beside(theirs) is None


def test_the_squares_of_two_equal_errors_add():
    own = blocks(1)
    alone = Evidence({"r": own}).estimate(mean)
    both = Evidence({"r": own, "s": own}).estimate(lambda samples: mean(samples, "r") * mean(samples, "s"))
    width, twice = math.log(alone.high / alone.low), math.log(both.high / both.low)
    assert twice == pytest.approx(math.sqrt(2) * width)
