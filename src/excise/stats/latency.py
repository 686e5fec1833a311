"""Latency rows: a p50, its floor's, their ratio, and ratios between rows, each with an interval over blocks."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from excise.meter.latency_records import LatencyCell, LatencyTrial, Operation
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.quantile import quantile


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """One cell over all blocks. Nothing is trimmed: a failed trial is counted, and has no samples."""

    cell: LatencyCell
    n: int
    p50_s: Estimate | None
    p95_s: Estimate | None
    floor_p50_s: Estimate | None
    to_floor: Estimate | None
    """Of the blocks' medians: this to its own floor, measured beside it."""
    close_p50_s: Estimate | None
    failures: tuple[tuple[str, int], ...]


def rows(trials: Sequence[LatencyTrial]) -> tuple[LatencyRow, ...]:
    """Measured trials by cell, in the order the cells first appear in."""
    measured = [trial for trial in trials if not trial.warmup]
    return tuple(_row(cell, [trial for trial in measured if trial.cell == cell]) for cell in _cells(measured))


def _cells(trials: Sequence[LatencyTrial]) -> list[LatencyCell]:
    order = get_args(Operation)
    return sorted({trial.cell for trial in trials}, key=lambda cell: (order.index(cell.operation), cell.tight, cell.address))


def _row(cell: LatencyCell, trials: Sequence[LatencyTrial]) -> LatencyRow:
    good = [trial for trial in trials if trial.failure is None]
    took_s = [ns / 1e9 for trial in good for ns in trial.took_ns]
    floor_s = [ns / 1e9 for trial in good for ns in trial.floor_ns]
    close_s = [ns / 1e9 for trial in good for ns in trial.close_ns]
    return LatencyRow(
        cell=cell,
        n=len(took_s),
        p50_s=quantile(took_s, 0.5),
        p95_s=quantile(took_s, 0.95),
        floor_p50_s=quantile(floor_s, 0.5),
        to_floor=_ratio([_middle(t.took_ns) for t in good], [_middle(t.floor_ns) for t in good]),
        close_p50_s=quantile(close_s, 0.5) if close_s else None,
        failures=tuple(Counter(t.failure for t in trials if t.failure is not None).most_common()),
    )


def ratio(trials: Sequence[LatencyTrial], above: LatencyCell, below: LatencyCell) -> Estimate | None:
    """How many times longer `above` takes than `below`, by the medians of blocks that have both."""
    first, second = (
        {t.block: _middle(t.took_ns) for t in trials if not t.warmup and t.cell == cell and t.failure is None}
        for cell in (above, below)
    )
    both = sorted(first.keys() & second.keys())
    return _ratio([first[block] for block in both], [second[block] for block in both])


def _middle(values_ns: Sequence[int]) -> float:
    return float(statistics.median(values_ns))


def _ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Of sums over blocks, so that a block of a noisy minute weighs in both."""
    if not above:
        return None
    return Blocks({"above": above, "below": below}).estimate(lambda sums: sums["above"] / sums["below"], POSITIVE)
