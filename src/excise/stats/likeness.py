"""Somebody's run beside our own repetition of it: ratios within each, because times of two hosts are never pooled."""

from collections.abc import Sequence
from dataclasses import dataclass

from excise.errors import SpecError
from excise.meter.records import Cell
from excise.stats.estimate import Estimate
from excise.stats.rows import Row
from excise.stats.run import Run, ratio


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How many times as long as `to` one cell took, here and there."""

    cell: Cell
    to: Cell
    ours: Estimate
    theirs: Estimate

    @property
    def agrees(self) -> bool | None:
        """Whether the two intervals meet; None where there is none."""
        ends = (self.ours.low, self.ours.high, self.theirs.low, self.theirs.high)
        if any(end is None for end in ends):
            return None
        our_low, our_high, their_low, their_high = ends
        assert our_low is not None
        assert our_high is not None
        assert their_low is not None
        assert their_high is not None
        return our_low <= their_high and their_low <= our_high


def pairs(ours: Run, theirs: Run) -> tuple[Pair, ...]:
    """One pair a cell that both have, in their order; each beside its workload's reference, or the first that both have."""
    mine = {row.cell: row for row in ours.rows if row.n}
    shared = [(mine[row.cell], row) for row in theirs.rows if row.n and row.cell in mine]
    found: list[Pair] = []
    for our, their in shared:
        beside = _beside(shared, our.cell.workload, theirs.reference)
        if beside[0].cell == our.cell:
            continue
        try:
            found.append(Pair(cell=our.cell, to=beside[0].cell, ours=ratio(our, beside[0]), theirs=ratio(their, beside[1])))
        except SpecError:
            continue  # No block in which both succeeded.
    return tuple(found)


def _beside(shared: Sequence[tuple[Row, Row]], workload: str, reference: str | None) -> tuple[Row, Row]:
    same = [both for both in shared if both[0].cell.workload == workload]
    plain = Cell(address=reference or "", workload=workload)
    return next((both for both in same if both[0].cell == plain), same[0])
