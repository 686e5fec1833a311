import pytest

from excise.meter.blocks import order, room
from excise.meter.records import Cell, Plan

CELLS = tuple(Cell(address=name, workload="t0") for name in "abcde")


def plan(**changes):
    return Plan(**{"cells": CELLS, "reference": "a", "budget_s": 10.0, **changes})


def test_a_block_is_every_cell_once_in_another_order_each_time():
    orders = [order(plan(), block) for block in range(20)]
    assert all(sorted(c.address for c in one) == list("abcde") for one in orders)
    assert len({tuple(c.address for c in one) for one in orders}) > 10


def test_the_order_depends_on_seed_and_block_alone():
    assert order(plan(seed=3), 7) == order(plan(seed=3), 7)
    assert [order(plan(seed=3), b) for b in range(5)] != [order(plan(seed=4), b) for b in range(5)]


def test_cold_cells_are_last_in_every_block_and_shuffled_too():
    cold = tuple(Cell(address=name, workload="t0", state="cold") for name in "xyz")
    orders = [order(plan(cells=(*cold, *CELLS)), block) for block in range(20)]
    assert all([cell.state for cell in one] == ["warm"] * 5 + ["cold"] * 3 for one in orders)
    assert len({tuple(cell.address for cell in one[5:]) for one in orders}) > 2


def test_warm_ups_and_one_measured_block_run_whatever_the_budget():
    assert room(plan(budget_s=0.001), 0, 0.0, [])
    assert room(plan(budget_s=0.001), 1, 50.0, [50.0])
    assert not room(plan(budget_s=0.001), 2, 100.0, [50.0, 50.0])


@pytest.mark.parametrize(("elapsed_s", "fits"), [(7.9, True), (8.1, False)])
def test_a_block_that_would_not_end_in_time_is_not_begun(elapsed_s, fits):
    # Measured blocks took 2 s each; the slow warm-up does not count.
    assert room(plan(), 3, elapsed_s, [9.0, 2.0, 2.0]) is fits


def test_a_number_of_blocks_counts_the_measured_ones():
    three = plan(blocks=3, budget_s=None)
    assert [block for block in range(9) if room(three, block, 0.0, [1.0])] == [0, 1, 2, 3]
