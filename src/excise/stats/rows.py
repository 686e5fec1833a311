"""A run's table: one row a cell, every number with its interval."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from excise.errors import SpecError
from excise.meter.records import Cell, Trial
from excise.stats.decomposition import Terms, decompose, total_s
from excise.stats.estimate import Estimate
from excise.stats.jackknife import PLAIN, POSITIVE, SHARE, Blocks, Sums
from excise.stats.projection import MILLION, worker_hours
from excise.stats.proportion import wilson
from excise.stats.quantile import quantile

_SIGNED = frozenset({"dispatch", "slowdown", "unattributed", "tax"})
"""Terms that are differences: near zero their interval must be able to hold it."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A rollout of some length, from one row's trials."""

    steps: int
    composed: bool
    """True: put together from start + steps x mean action + cleanup; False: trials had this very length."""
    total_s: Estimate
    tax_rate: Estimate | None
    """Tax / total; None where no reference ran beside it."""

    def worker_hours(self, rollouts: int = MILLION) -> Estimate:
        """As if none failed: how a longer rollout fails was not measured."""
        return worker_hours(self.total_s, rollouts)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell. Terms are means in seconds, and add up to `total_s`; a field is None where nothing measured it."""

    cell: Cell
    reference: bool
    """Work is measured on this row; its slowdown is zero by definition."""
    attempted: int
    n: int
    """Trials that succeeded; only they are in the times."""
    paired: int
    """Of them, those whose block has a reference; only they are in the means."""
    failures: tuple[tuple[str, int], ...]
    """Reasons and how often, the commonest first."""
    success: Estimate | None
    actions: int = 0
    estimated: bool = False
    """No clock runs inside: dispatch is that of interleaved null actions."""
    start_s: Estimate | None = None
    dispatch_s: Estimate | None = None
    """Per action."""
    slowdown_s: Estimate | None = None
    """Per action."""
    work_s: Estimate | None = None
    """Per action."""
    cleanup_s: Estimate | None = None
    unattributed_s: Estimate | None = None
    total_s: Estimate | None = None
    total_p50_s: Estimate | None = None
    total_p95_s: Estimate | None = None
    """None below 59 trials: there is no interval, so there is no number."""
    tax_s: Estimate | None = None
    tax_rate: Estimate | None = None
    per_success_s: Estimate | None = None
    """Seconds a rollout that succeeds costs, with the time of those that failed: T + p / (1 - p) x T_fail."""
    cpu_s: Estimate | None = None
    """Busy CPU seconds of the whole host per rollout."""
    totals_s: Mapping[int, float] = field(default_factory=dict[int, float], repr=False)
    """By block, for comparisons within blocks."""
    blocks: Blocks | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return self.cell.address

    def worker_hours(self, rollouts: int = MILLION) -> Estimate | None:
        """For so many rollouts that succeed, the failed ones among them paid for."""
        return None if self.per_success_s is None else worker_hours(self.per_success_s, rollouts)

    def rollout(self, steps: int) -> Rollout:
        """A rollout of `steps` actions like those measured; composed unless the trials were that long."""
        if steps < 1:
            raise SpecError(f"steps={steps}: a rollout has at least one action")
        if self.blocks is None:
            raise SpecError(f"{self.address} has no successful trial to compose a rollout from: {self._why()}")
        whole = steps == self.actions

        def time(sums: Sums) -> float:
            if whole:
                return sums["total"] / sums["rollouts"]
            return (sums["start"] + sums["cleanup"]) / sums["rollouts"] + steps * sums["acting"] / sums["actions"]

        def rate(sums: Sums) -> float:
            return 1 - steps * sums["work"] / sums["actions"] / time(sums)

        return Rollout(
            steps=steps,
            composed=not whole,
            total_s=self.blocks.estimate(time, POSITIVE),
            tax_rate=self.blocks.estimate(rate, SHARE) if self.paired else None,
        )

    def _why(self) -> str:
        return self.failures[0][0] if self.failures else "no whole block was measured"


def row(cell: Cell, trials: Sequence[Trial], references: Mapping[int, Trial], *, reference: bool) -> Row:
    """The row of one cell from its measured trials; `references` are the reference's successful trials by block."""
    good = [trial for trial in trials if trial.failure is None]
    failures = Counter(trial.failure for trial in trials if trial.failure is not None)
    found = Row(
        cell=cell,
        reference=reference,
        attempted=len(trials),
        n=len(good),
        paired=sum(trial.block in references for trial in good),
        failures=tuple(failures.most_common()),
        success=wilson(len(good), len(trials)),
        totals_s={trial.block: total_s(trial) for trial in good},
        per_success_s=_per_success(trials),
    )
    return _with_times(found, good, references) if good else found


def _per_success(trials: Sequence[Trial]) -> Estimate | None:
    """All the time spent over the number of successes."""
    spent = [total_s(trial) for trial in trials]
    good = [float(trial.failure is None) for trial in trials]
    if sum(good) < 2:  # without that one there is nothing to divide by
        return Estimate(sum(spent)) if sum(good) else None
    return Blocks({"spent": spent, "good": good}).estimate(_ratio("spent", "good"), POSITIVE)


def _with_times(found: Row, good: Sequence[Trial], references: Mapping[int, Trial]) -> Row:
    # A trial without a reference in its block stands against itself: its start, cleanup and total are still known.
    used = [trial for trial in good if trial.block in references] or good
    terms = [decompose(trial, references.get(trial.block, trial)) for trial in used]
    blocks = Blocks(_columns(used, terms))
    paired = found.paired > 0

    def mean(name: str, by: str = "rollouts") -> Estimate:
        return blocks.estimate(_ratio(name, by), PLAIN if name in _SIGNED else POSITIVE)

    totals = list(found.totals_s.values())
    known = dict[str, Any](
        actions=terms[0].actions,
        estimated=any(term.estimated for term in terms),
        start_s=mean("start"),
        cleanup_s=mean("cleanup"),
        unattributed_s=mean("unattributed"),
        total_s=mean("total"),
        total_p50_s=quantile(totals, 0.5),
        total_p95_s=quantile(totals, 0.95),
        cpu_s=mean("cpu"),
        blocks=blocks,
    )
    if paired:
        known |= dict[str, Any](
            dispatch_s=mean("dispatch", "actions"),
            slowdown_s=mean("slowdown", "actions"),
            work_s=mean("work", "actions"),
            tax_s=mean("tax"),
            tax_rate=blocks.estimate(_ratio("tax", "total"), SHARE),
        )
    return replace(found, **known)


def _ratio(name: str, by: str) -> Callable[[Sums], float]:
    return lambda sums: sums[name] / sums[by]


def _columns(trials: Sequence[Trial], terms: Sequence[Terms]) -> dict[str, list[float]]:
    return {
        "rollouts": [1.0] * len(terms),
        "actions": [float(t.actions) for t in terms],
        "start": [t.start_s for t in terms],
        "acting": [t.dispatch_s + t.slowdown_s + t.work_s for t in terms],
        "dispatch": [t.dispatch_s for t in terms],
        "slowdown": [t.slowdown_s for t in terms],
        "work": [t.work_s for t in terms],
        "cleanup": [t.cleanup_s for t in terms],
        "unattributed": [t.unattributed_s for t in terms],
        "tax": [t.tax_s for t in terms],
        "total": [t.total_s for t in terms],
        "cpu": [trial.cpu_s for trial in trials],
    }
