"""Rows of a run of pools: how long a claim takes from when it was to be made, what it found, and what that cost in CPU."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from excise.meter.pool_records import Claim, Mode, PoolCell, PoolTrial
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.quantile import clustered

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class PoolRow:
    """One cell over all blocks. Nothing is trimmed: a claim that failed is counted, and has no time."""

    cell: PoolCell
    blocks: int
    n: int
    """Claims that succeeded."""
    attempted: int
    p50_s: Estimate | None
    p95_s: Estimate | None
    mean_s: Estimate | None
    cpu_s: Estimate | None
    """Core-seconds of the whole host for each claim that was asked for: the wave, and what the pool did by itself meanwhile."""
    ahead_cpu_s: Estimate | None
    """The same before the first of them, of all together: filling the pool is not free, nor is it any claim's."""
    to_floor: Estimate | None
    """Of the blocks' medians: a claim to the least that the kernel asks for a program, measured just before."""
    hits: tuple[tuple[str, int], ...]
    """What the claims that succeeded found, the most frequent first."""
    failures: tuple[tuple[str, int], ...]


def waited_s(claim: Claim) -> float:
    """From when it was to be asked for until it was ready."""
    return (claim.late_ns + claim.ready_ns) / 1e9


def rows(trials: Sequence[PoolTrial], cells: Sequence[PoolCell] = ()) -> tuple[PoolRow, ...]:
    """Measured trials by cell, in the order of the plan's `cells`; else in that in which they first appear."""
    by_cell: dict[PoolCell, list[PoolTrial]] = {}
    for trial in sorted((one for one in trials if not one.warmup), key=lambda one: one.block):
        by_cell.setdefault(trial.cell, []).append(trial)
    order = dict.fromkeys((*cells, *(trial.cell for trial in trials)))
    return tuple(_row(cell, by_cell[cell]) for cell in order if cell in by_cell)


def _row(cell: PoolCell, trials: Sequence[PoolTrial]) -> PoolRow:
    asked = [claim for trial in trials for claim in trial.claims]
    good = [[waited_s(claim) for claim in trial.claims if claim.failure is None] for trial in trials]
    found = [block for block in good if block]
    reasons = [claim.failure for claim in asked if claim.failure] + [trial.failure for trial in trials if trial.failure]
    return PoolRow(
        cell=cell,
        blocks=len(trials),
        n=sum(map(len, good)),
        attempted=len(asked),
        p50_s=clustered(found, 0.5) if found else None,
        p95_s=clustered(found, 0.95) if found else None,
        mean_s=_mean(means(trials)),
        cpu_s=_mean(core_seconds(trials)),
        ahead_cpu_s=_mean(Blocks({"sum": [trial.lead_cpu_s for trial in trials], "n": [1.0] * len(trials)})),
        to_floor=_to_floor(trials),
        hits=tuple(Counter(claim.hit for claim in asked if claim.failure is None).most_common()),
        failures=tuple(Counter(reasons).most_common()),
    )


def means(trials: Sequence[PoolTrial]) -> Blocks | None:
    """The seconds and the number of each block's claims that succeeded."""
    good = [(t.block, [waited_s(c) for c in t.claims if c.failure is None]) for t in trials]
    known = [(block, values) for block, values in good if values]
    if not known:
        return None
    return Blocks(
        {"sum": [sum(values) for _, values in known], "n": [len(values) for _, values in known]}, [block for block, _ in known]
    )


def core_seconds(trials: Sequence[PoolTrial]) -> Blocks | None:
    """The core-seconds and the number of each block's claims."""
    known = [trial for trial in trials if trial.claims]
    if not known:
        return None
    columns = {"sum": [trial.cpu_s for trial in known], "n": [float(len(trial.claims)) for trial in known]}
    return Blocks(columns, [trial.block for trial in known])


def _mean(blocks: Blocks | None) -> Estimate | None:
    return None if blocks is None else blocks.estimate(lambda sums: sums["sum"] / sums["n"], POSITIVE)


def _to_floor(trials: Sequence[PoolTrial]) -> Estimate | None:
    pairs = [
        (statistics.median(values), statistics.median(trial.floor_ns) / 1e9)
        for trial in trials
        if trial.floor_ns and (values := [waited_s(claim) for claim in trial.claims if claim.failure is None])
    ]
    if not pairs:
        return None
    columns = {"above": [above for above, _ in pairs], "below": [below for _, below in pairs]}
    return Blocks(columns).estimate(lambda sums: sums["above"] / sums["below"], POSITIVE)


def ratio(trials: Sequence[PoolTrial], above: PoolCell, below: PoolCell) -> Estimate | None:
    """How many times longer a claim of `above` takes than one of `below` in the mean, over the blocks that have both."""
    return _ratio(*(means(_of(trials, cell)) for cell in (above, below)))


def cpu_ratio(trials: Sequence[PoolTrial], above: PoolCell, below: PoolCell) -> Estimate | None:
    """The same of the core-seconds of a claim."""
    return _ratio(*(core_seconds(_of(trials, cell)) for cell in (above, below)))


def _of(trials: Sequence[PoolTrial], cell: PoolCell) -> list[PoolTrial]:
    return [trial for trial in trials if not trial.warmup and trial.cell == cell]


def _ratio(above: Blocks | None, below: Blocks | None) -> Estimate | None:
    both = None if above is None or below is None else above.beside(below)
    if both is None or not both.sums["b.sum"]:
        return None
    return both.estimate(lambda sums: (sums["a.sum"] / sums["a.n"]) / (sums["b.sum"] / sums["b.n"]), POSITIVE)
