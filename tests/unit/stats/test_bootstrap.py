# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalOperand=false

import random
import statistics

import pytest

from excise.stats.bootstrap import FEWEST_BLOCKS, Blocks


def ratio(sums):
    return sums["a"] / sums["b"]


def test_the_value_is_that_of_the_data_and_the_interval_holds_it():
    found = Blocks({"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "b": [2.0] * 6}, seed=1).estimate(ratio)
    assert found.value == 21 / 12
    assert found.low < found.value < found.high


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    columns = {"a": [1.0, 4.0, 2.0, 8.5, 5.5, 7.0, 1.5, 3.0, 9.0], "b": [1.0] * 9}
    first, again, other = (Blocks(columns, seed=s).estimate(ratio) for s in (1, 1, 2))
    assert first == again != other


def test_few_blocks_give_no_interval():
    found = Blocks({"a": [1.0] * (FEWEST_BLOCKS - 1), "b": [2.0] * (FEWEST_BLOCKS - 1)}, seed=1).estimate(ratio)
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_blocks_that_are_all_alike_give_an_interval_of_no_width():
    found = Blocks({"a": [3.0] * 8, "b": [2.0] * 8}, seed=1).estimate(ratio)
    assert (found.low, found.high) == (1.5, 1.5)


def test_what_moves_both_cells_of_a_block_cancels_in_the_ratio():
    # A busy host makes one block five times as slow for everybody: the ratio must not notice.
    busy = [1.0, 5.0, 1.0, 1.0, 5.0, 1.0, 1.0, 5.0]
    found = Blocks({"a": [2 * x for x in busy], "b": busy}, seed=1).estimate(ratio)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Blocks({"a": [1.0], "b": [1.0, 2.0]}, seed=1)


@pytest.mark.parametrize("blocks", [8, 30])
def test_intervals_cover_a_known_ratio(blocks):
    chance = random.Random(blocks)  # noqa: S311 - a simulation
    trials, held = 400, 0
    for number in range(trials):
        busy = [chance.lognormvariate(0, 0.5) for _ in range(blocks)]
        a = [3 * x * chance.lognormvariate(-0.02, 0.2) for x in busy]
        b = [x * chance.lognormvariate(-0.02, 0.2) for x in busy]
        found = Blocks({"a": a, "b": b}, seed=number, times=400).estimate(ratio)
        held += found.low <= 3.0 <= found.high
    # The multiplicative noise has mean 1, so the true ratio is 3; 95 % less three standard errors is 91.7 %.
    assert 0.917 <= held / trials <= 0.985


def test_the_interval_narrows_as_blocks_are_added():
    chance = random.Random(5)  # noqa: S311 - a simulation
    values = [chance.lognormvariate(0, 0.5) for _ in range(200)]
    few = Blocks({"a": values[:20], "b": [1.0] * 20}, seed=1).estimate(ratio)
    many = Blocks({"a": values, "b": [1.0] * 200}, seed=1).estimate(ratio)
    assert many.high - many.low < 0.7 * (few.high - few.low)
    assert many.value == pytest.approx(statistics.fmean(values))
