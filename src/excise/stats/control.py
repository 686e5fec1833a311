"""What the daemons beside a run did to it: its ratios, and the same from blocks that ran with every daemon still."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from excise.meter.records import Cell
from excise.stats.condensed import Condensed
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.run import Run


@dataclass(frozen=True, kw_only=True)
class Controlled:
    """One cell that needs no daemon. Ratios are its total over the reference's, paired within blocks."""

    cell: Cell
    reference: Cell
    measured: Estimate
    """In the run's own blocks, with the daemons as they were."""
    control: Estimate
    """With every daemon still."""
    n: int
    """Control blocks in it."""

    @property
    def agrees(self) -> bool | None:
        """Whether the intervals meet; None where one of them has too few blocks to have any."""
        ours, theirs = self.measured, self.control
        if ours.low is None or ours.high is None or theirs.low is None or theirs.high is None:
            return None
        return ours.low <= theirs.high and theirs.low <= ours.high


def controlled(run: Run) -> tuple[Controlled, ...]:
    """The control's ratios beside the run's, in the plan's order; empty where no control block was run."""
    totals = _totals_s(run.control)
    found: list[Controlled] = []
    for row in run.rows:
        beside = run.reference_row(row)
        if beside is None or beside.cell == row.cell:
            continue
        measured = _ratio(row.totals_s, beside.totals_s)
        control = _ratio(totals.get(row.cell, {}), totals.get(beside.cell, {}))
        if measured is not None and control is not None:
            n = len(totals[row.cell].keys() & totals[beside.cell].keys())
            found.append(Controlled(cell=row.cell, reference=beside.cell, measured=measured, control=control, n=n))
    return tuple(found)


def _totals_s(trials: Sequence[Condensed]) -> dict[Cell, dict[int, float]]:
    """Mean seconds of the successful trials, by cell and block."""
    found: dict[Cell, dict[int, list[float]]] = {}
    for trial in trials:
        if trial.failure is None and not trial.rerun:
            found.setdefault(trial.cell, {}).setdefault(trial.block, []).append(trial.total_s)
    return {cell: {block: sum(of) / len(of) for block, of in blocks.items()} for cell, blocks in found.items()}


def _ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Estimate | None:
    shared = sorted(above.keys() & below.keys())
    if not shared:
        return None
    columns = {"above": [above[block] for block in shared], "below": [below[block] for block in shared]}
    return Blocks(columns, shared).estimate(lambda sums: sums["above"] / sums["below"], POSITIVE)
