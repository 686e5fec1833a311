# pyright: reportOptionalMemberAccess=false

"""Runs of claims, compared: each to a claim without a pool of its own run, or two addresses within blocks."""

import pytest

from excise.errors import SpecError
from excise.meter.pool_records import Claim, PoolCell, PoolTrial
from excise.meter.records import Quiet
from excise.stats.comparison import compare_claims, compare_pools

NONE = PoolCell(source="s", address="s", claims=3, zipf=0.8)
EXACT = PoolCell(source="s", address="pool:s?pool.match=exact", mode="exact", state="pooled", claims=3, zipf=0.8, places=5)
CLOSEST = PoolCell(source="s", address="pool:s", mode="closest", state="pooled", claims=3, zipf=0.8, places=5)
OTHER = PoolCell(source="s", address="pool:s", mode="closest", state="pooled", claims=4, zipf=1.2, places=5)


def trials(factors, *, noise=1.0):
    """Blocks that differ by much, and cells within them by their factor."""
    found = []
    for block in range(8):
        for cell, factor in factors.items():
            took = round(1e8 * factor * noise * (1 + block) * (1 + 0.001 * ((block * 7) % 5)))
            claims = tuple(Claim(0, 0, took // 10, took, 2 * took) for _ in range(cell.claims))
            found.append(
                PoolTrial(run="r", block=block, position=0, cell=cell, quiet=Quiet(window_ns=1), claims=claims, cpu_s=1.0)
            )
    return found


def test_two_runs_are_compared_to_a_claim_without_a_pool_of_their_own():
    before = trials({NONE: 1.0, EXACT: 0.5, CLOSEST: 0.2})
    after = trials({NONE: 1.0, EXACT: 0.5, CLOSEST: 0.4}, noise=17.0)
    found = compare_pools(before, after)
    assert {change.name: change.verdict for change in found.changes} == {EXACT.words(): "same", CLOSEST.words(): "slower"}
    assert [change.ratio.value for change in found.slower] == [pytest.approx(2.0, rel=0.01)]


def test_two_addresses_of_one_run_are_compared_where_they_were_asked_for_the_same():
    found = compare_claims(trials({NONE: 1.0, EXACT: 0.5, CLOSEST: 0.2, OTHER: 9.0}), EXACT.address, CLOSEST.address)
    (change,) = found.changes
    assert change.verdict == "faster"
    assert change.ratio.value == pytest.approx(0.4, rel=0.01)


def test_addresses_that_were_asked_for_other_things_are_refused():
    with pytest.raises(SpecError, match="not asked for the same"):
        compare_claims(trials({NONE: 1.0, OTHER: 1.0}), "s", "pool:s")


def test_what_cells_are_called():
    assert NONE.words() == "s, no pool, warm, zipf 0.8, 3 claims"
    idle = PoolCell(source="s", address="p", mode="closest", state="pooled", depth="sibling", idle=2)
    assert idle.words() == "s, closest, 2 idle at sibling, 1 claim"
    mixed = PoolCell(source="s", address="p", mode="exact", zipf=0.0, memory_percent=25, claims=30, arrivals_per_s=6.0)
    assert mixed.words() == "s, exact, zipf 0, 25 %, 30 claims at 6/s"
