# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.stats.jackknife import FEWEST_BLOCKS, PLAIN, POSITIVE, SHARE, SIGNED, Blocks, student

columns = st.lists(st.floats(0.01, 100.0), min_size=FEWEST_BLOCKS, max_size=40)


def ratio(sums):
    return sums["a"] / sums["b"]


def test_the_value_is_that_of_the_data_and_the_interval_holds_it():
    found = Blocks({"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "b": [2.0] * 6}).estimate(ratio)
    assert found.value == 21 / 12
    assert found.low < found.value < found.high


def test_the_reach_is_students():
    # From printed tables of Student's t.
    for freedom, printed in ((5, 2.571), (9, 2.262), (19, 2.093), (99, 1.984)):
        assert student(freedom) == pytest.approx(printed, abs=0.001)


def test_at_other_confidences_too():
    for freedom, printed in ((9, 4.781), (19, 3.883), (59, 3.463)):
        assert student(freedom, 0.999) == pytest.approx(printed, abs=0.003)


def mean(values, scale, sign=1.0):
    return Blocks({"a": [sign * x for x in values], "b": [1.0] * len(values)}).estimate(ratio, scale)


@given(columns)
def test_a_difference_reaches_outwards_and_never_less_than_plainly(values):
    plain, signed, turned = mean(values, PLAIN), mean(values, SIGNED), mean(values, SIGNED, -1.0)
    assert signed.low == plain.low
    assert signed.high >= plain.high
    assert turned.low == pytest.approx(-signed.high)
    assert turned.high == pytest.approx(-signed.low)


@given(columns, st.floats(0.01, 100.0), st.sampled_from([PLAIN, POSITIVE, SIGNED]))
def test_units_do_not_matter(values, factor, scale):
    one, other = mean(values, scale), mean([factor * x for x in values], scale)
    for end in ("value", "low", "high"):
        assert getattr(other, end) == pytest.approx(factor * getattr(one, end), rel=1e-6, abs=1e-9)


@given(columns)
def test_the_order_of_blocks_does_not_matter(values):
    one, other = mean(values, POSITIVE), mean(values[::-1], POSITIVE)
    assert (other.low, other.high) == (pytest.approx(one.low), pytest.approx(one.high))


def test_far_from_zero_a_difference_reaches_as_far_as_a_time():
    values = [10.0, 11.0, 9.5, 10.4, 9.9, 10.8, 10.1, 9.7]
    assert mean(values, SIGNED).high == pytest.approx(mean(values, POSITIVE).high, rel=1e-3)


def test_beside_each_other_are_only_blocks_that_both_have():
    one = Blocks({"x": [1.0, 2.0, 3.0]}, [4, 5, 6])
    both = one.beside(Blocks({"x": [30.0, 20.0]}, [6, 5]))
    assert both.ids == (5, 6)
    assert both.sums == {"a.x": 5.0, "b.x": 50.0}
    assert one.beside(Blocks({"x": [1.0]}, [9])) is None


def test_a_mean_has_the_textbook_interval():
    values = [3.0, 4.0, 5.0, 6.0, 7.0, 11.0]
    found = Blocks({"a": values, "b": [1.0] * 6}).estimate(ratio)
    reach = 2.571 * statistics.stdev(values) / 6**0.5
    assert (found.low, found.high) == (pytest.approx(6 - reach, abs=0.002), pytest.approx(6 + reach, abs=0.002))


def test_a_time_is_never_below_zero_and_a_share_never_above_one():
    spiky = Blocks({"a": [1.0, 1.0, 1.0, 1.0, 1.0, 90.0], "b": [100.0] * 6})
    assert spiky.estimate(ratio, PLAIN).low < 0 < spiky.estimate(ratio, POSITIVE).low
    found = spiky.estimate(lambda sums: 1 - ratio(sums), SHARE)
    assert found.low < found.value < found.high < 1


def test_what_has_no_place_on_a_scale_is_left_as_it_is():
    columns = Blocks({"a": [0.0] * 5 + [1.0], "b": [1.0] * 6})
    assert columns.estimate(ratio, POSITIVE) == columns.estimate(ratio, PLAIN)


def test_few_blocks_give_no_interval():
    found = Blocks({"a": [1.0] * (FEWEST_BLOCKS - 1), "b": [2.0] * (FEWEST_BLOCKS - 1)}).estimate(ratio)
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_blocks_that_are_all_alike_give_an_interval_of_no_width():
    found = Blocks({"a": [3.0] * 8, "b": [2.0] * 8}).estimate(ratio)
    assert (found.low, found.high) == (1.5, 1.5)


def test_what_moves_both_cells_of_a_block_cancels_in_the_ratio():
    # A busy host makes one block five times as slow for everybody: the ratio must not notice.
    busy = [1.0, 5.0, 1.0, 1.0, 5.0, 1.0, 1.0, 5.0]
    found = Blocks({"a": [2 * x for x in busy], "b": busy}).estimate(ratio)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Blocks({"a": [1.0], "b": [1.0, 2.0]})


def noisy_pair(chance, blocks, spread):
    """Two cells whose ratio is 3, in blocks that are slow for both at once."""
    busy = [chance.lognormvariate(0, 0.5) for _ in range(blocks)]
    noise = [[chance.lognormvariate(-spread * spread / 2, spread) for _ in busy] for _ in range(2)]
    return [3 * x * y for x, y in zip(busy, noise[0], strict=True)], [x * y for x, y in zip(busy, noise[1], strict=True)]


@pytest.mark.parametrize("spread", [0.2, 0.5])
@pytest.mark.parametrize("blocks", [6, 10, 30])
def test_intervals_cover_a_known_ratio(blocks, spread):
    chance = random.Random(blocks)  # noqa: S311 - a simulation
    experiments, held = 2000, 0
    for _ in range(experiments):
        a, b = noisy_pair(chance, blocks, spread)
        found = Blocks({"a": a, "b": b}).estimate(ratio, POSITIVE)
        held += found.low <= 3.0 <= found.high
    # 93 to 97 % is what the meter promises; less than two standard errors of this count (0.5 %) below it is no news.
    assert 0.925 <= held / experiments <= 0.97


@pytest.mark.parametrize("blocks", [6, 10, 30])
def test_intervals_cover_a_known_tax_rate(blocks):
    chance = random.Random(blocks)  # noqa: S311 - a simulation
    experiments, held = 2000, 0
    for _ in range(experiments):
        tax, work = noisy_pair(chance, blocks, 0.3)
        columns = Blocks({"tax": tax, "total": [t + w for t, w in zip(tax, work, strict=True)]})
        found = columns.estimate(lambda sums: sums["tax"] / sums["total"], SHARE)
        held += found.low <= 0.75 <= found.high
    assert 0.925 <= held / experiments <= 0.97


def test_the_interval_narrows_as_blocks_are_added():
    chance = random.Random(5)  # noqa: S311 - a simulation
    values = [chance.lognormvariate(0, 0.5) for _ in range(200)]
    few = Blocks({"a": values[:20], "b": [1.0] * 20}).estimate(ratio)
    many = Blocks({"a": values, "b": [1.0] * 200}).estimate(ratio)
    assert many.high - many.low < 0.7 * (few.high - few.low)
    assert many.value == pytest.approx(statistics.fmean(values))
