"""Two runs, compared: by ratios within each of them alone, so that the hosts may differ.

A row's numbers are divided by what the reference takes for an action in the same run (of a latency run: by the floor beside
each sample). A change is judged by its whole interval: slower only if all of it is beyond the threshold.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from excise.errors import SpecError
from excise.meter.latency_records import LatencyCell, LatencyTrial
from excise.meter.pool_records import PoolTrial
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Sums
from excise.stats.latency import ratio as latency_ratio
from excise.stats.latency import rows as latency_rows
from excise.stats.pools import ratio as pool_ratio
from excise.stats.rows import Row
from excise.stats.run import Run, ratio

THRESHOLD = 1.10

Verdict = Literal["slower", "faster", "same", "unsure", "broken"]
"""slower, faster: the whole interval is beyond the threshold. same: all of it is within. unsure: neither, or no interval.
broken: it succeeded before and never now."""

Key = tuple[str, str]
"""A row's name and what of it is compared."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One number in two runs, or of two rows."""

    name: str
    metric: str
    before: Estimate | None = None
    """To the reference or the floor of its own run; None where two rows of one run are compared."""
    after: Estimate | None = None
    ratio: Estimate | None
    """After over before; above one is slower. None where there is nothing after."""
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything two runs have in common, and what they have not."""

    changes: tuple[Change, ...]
    threshold: float
    to: str
    """What the numbers are divided by."""
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    @property
    def slower(self) -> tuple[Change, ...]:
        """What a gate stops at."""
        return tuple(change for change in self.changes if change.verdict in {"slower", "broken"})


def compare_runs(before: Run, after: Run, threshold: float = THRESHOLD) -> Comparison:
    """Rows of the same cell; their total, start, set-up, reset and action, to an action on the reference of their own run."""
    references = {before.reference, after.reference}
    if None in references or len(references) > 1:
        raise SpecError(
            f"work was measured on {before.reference or 'nothing'} and on {after.reference or 'nothing'}: runs are compared by "
            "ratios to one reference that both have; measure both with the same --reference"
        )
    return _compared(_to_reference(before), _to_reference(after), threshold, f"an action on {before.reference}")


def compare_latencies(
    before: Iterable[LatencyTrial], after: Iterable[LatencyTrial], threshold: float = THRESHOLD
) -> Comparison:
    """Operations that both runs measured, to the floor beside each of their samples."""
    return _compared(_to_floor(before), _to_floor(after), threshold, "the floor")


def compare_rows(run: Run, first: str, second: str, threshold: float = THRESHOLD) -> Comparison:
    """Two addresses of one run, within blocks, for every combination of the other factors that both have."""
    pairs = [(a, b) for a in _of(run, first) for b in _of(run, second) if _like(a, b)]
    if not pairs:
        raise SpecError(f"{first} and {second} have no cells in this run that differ in nothing else; compare others")
    changes = [_change((b.name, f"total on {b.cell.workload}"), ratio(b, a), threshold) for a, b in pairs if a.n and b.n]
    if not changes:
        raise SpecError(f"{first} or {second} has no successful trial: there is nothing to compare")
    return _judgeable(Comparison(changes=tuple(changes), threshold=threshold, to=first))


def compare_operations(trials: Iterable[LatencyTrial], first: str, second: str, threshold: float = THRESHOLD) -> Comparison:
    """The same for a latency run: every operation that both addresses have."""
    kept = list(trials)
    cells = dict.fromkeys(trial.cell for trial in kept)
    pairs = [(a, b) for a in cells for b in cells if _same_operation(a, b) and (a.address, b.address) == (first, second)]
    found = [(_latency_name(b), latency_ratio(kept, b, a)) for a, b in pairs]
    changes = [_change((name, "p50"), estimate, threshold) for name, estimate in found if estimate is not None]
    if not changes:
        raise SpecError(f"{first} and {second} share no operation in this run: there is nothing to compare")
    return _judgeable(Comparison(changes=tuple(changes), threshold=threshold, to=first))


def compare_pools(before: Iterable[PoolTrial], after: Iterable[PoolTrial], threshold: float = THRESHOLD) -> Comparison:
    """Claims that both runs measured, to a claim without a pool of the same source in the same blocks of their own run."""
    return _compared(_to_no_pool(before), _to_no_pool(after), threshold, "a claim without a pool")


def compare_claims(trials: Iterable[PoolTrial], first: str, second: str, threshold: float = THRESHOLD) -> Comparison:
    """Two addresses of one run, within blocks, wherever both were asked for the same."""
    kept = list(trials)
    cells = dict.fromkeys(trial.cell for trial in kept)
    pairs = [(a, b) for a in cells for b in cells if (a.address, b.address) == (first, second) and a.beside() == b.beside()]
    found = [(b.words(), pool_ratio(kept, b, a)) for a, b in pairs]
    changes = [_change((name, "claim"), estimate, threshold) for name, estimate in found if estimate is not None]
    if not changes:
        known = ", ".join(dict.fromkeys(cell.address for cell in cells))
        raise SpecError(f"{first} and {second} were not asked for the same in this run; it has: {known}")
    return _judgeable(Comparison(changes=tuple(changes), threshold=threshold, to=first))


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """Of two independent estimates, both above zero: errors add as squares on the logarithmic scale."""
    value = above.value / below.value
    ends = (above.low, above.high, below.low, below.high)
    if any(end is None or end <= 0 for end in ends):
        return Estimate(value)
    low, high, below_low, below_high = (end for end in ends if end is not None)
    down = math.hypot(math.log(above.value / low), math.log(below_high / below.value))
    up = math.hypot(math.log(high / above.value), math.log(below.value / below_low))
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def judge(change: Estimate, threshold: float) -> Verdict:
    """By the whole interval."""
    if change.low is None or change.high is None:
        return "unsure"
    if change.low > threshold:
        return "slower"
    if change.high < 1 / threshold:
        return "faster"
    return "same" if change.low >= 1 / threshold and change.high <= threshold else "unsure"


def _compared(
    before: Mapping[Key, Estimate | None], after: Mapping[Key, Estimate | None], threshold: float, to: str
) -> Comparison:
    if not threshold > 1:
        raise SpecError(f"a threshold of {threshold:g} would stop what got faster: give one above 1, as 1.10")
    shared = [key for key in before if key in after]
    if not shared:
        raise SpecError("the two runs have no cell in common: there is nothing to compare")
    changes: list[Change] = []
    for key in shared:
        was, now = before[key], after[key]
        if was is None:
            continue  # It did not work before: whatever it does now is no slower.
        if now is None:
            changes.append(Change(name=key[0], metric=key[1], before=was, ratio=None, verdict="broken"))
        else:
            changes.append(_change(key, quotient(now, was), threshold, was, now))
    found = Comparison(
        changes=tuple(changes),
        threshold=threshold,
        to=to,
        only_before=_names(before, after),
        only_after=_names(after, before),
    )
    return _judgeable(found)


def _judgeable(found: Comparison) -> Comparison:
    """A gate that can judge nothing must not look open."""
    if not any(change.verdict == "broken" or (change.ratio and change.ratio.low is not None) for change in found.changes):
        raise SpecError("no number here has an interval, so nothing can be judged: measure at least 6 blocks")
    return found


def _change(
    key: Key, ratio: Estimate, threshold: float, before: Estimate | None = None, after: Estimate | None = None
) -> Change:
    name, metric = key
    return Change(name=name, metric=metric, before=before, after=after, ratio=ratio, verdict=judge(ratio, threshold))


def _names(mine: Mapping[Key, object], theirs: Mapping[Key, object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, metric in mine if (name, metric) not in theirs))


_METRICS = {
    "total": ("total", "rollouts"),
    "start": ("start", "rollouts"),
    "set-up": ("setup", "rollouts"),
    "reset": ("reset", "rollouts"),
    "action": ("acting", "actions"),
}


def _to_reference(run: Run) -> dict[Key, Estimate | None]:
    """Every row but the reference's own, in actions of the reference; None for a row that never succeeded."""
    found: dict[Key, Estimate | None] = {}
    for row in run.rows:
        beside = run.reference_row(row)
        if row.reference or beside is None or beside.blocks is None:
            continue
        both = None if row.blocks is None else row.blocks.beside(beside.blocks)
        for metric, (above, below) in _METRICS.items():
            if row.blocks is not None and not row.blocks.sums[above]:
                continue  # A sandbox that lives on is not started, and one of its own is not reset.

            def measured(sums: Sums, above: str = above, below: str = below) -> float:
                return sums[f"a.{above}"] / sums[f"a.{below}"] * sums["b.actions"] / sums["b.acting"]

            name = f"{row.name} on {row.cell.workload}"
            found[name, metric] = None if both is None else both.estimate(measured, POSITIVE)
    return found


def _to_floor(trials: Iterable[LatencyTrial]) -> dict[Key, Estimate | None]:
    return {(_latency_name(row.cell), "p50"): row.to_floor for row in latency_rows(list(trials))}


def _to_no_pool(trials: Iterable[PoolTrial]) -> dict[Key, Estimate | None]:
    kept = list(trials)
    cells = dict.fromkeys(trial.cell for trial in kept)
    plain = {cell.beside(): cell for cell in cells if cell.mode == "none" and cell.state == "warm" and not cell.kept}
    return {
        (cell.words(), "claim"): pool_ratio(kept, cell, beside)
        for cell in cells
        if (beside := plain.get(cell.beside())) is not None and cell != beside
    }


def _latency_name(cell: LatencyCell) -> str:
    return f"{cell.address} {cell.operation}{', in a row' if cell.tight else ''}"


def _same_operation(a: LatencyCell, b: LatencyCell) -> bool:
    return (a.operation, a.tight) == (b.operation, b.tight)


def _of(run: Run, address: str) -> list[Row]:
    found = [row for row in run.rows if row.address == address]
    if not found:
        known = dict.fromkeys(row.address for row in run.rows)
        raise SpecError(f"{address} is not in this run; there are: {', '.join(known)}")
    return found


def _like(a: Row, b: Row) -> bool:
    return msgspec.structs.replace(a.cell, address="") == msgspec.structs.replace(b.cell, address="")
