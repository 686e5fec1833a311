"""From a cell's trials to its row. The block is the unit: a wave's concurrent rollouts are one observation, not many."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from excise.meter.records import JOURNEY, STAGES, Cell
from excise.stats.condensed import Condensed
from excise.stats.decomposition import Terms, decompose
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SHARE, SIGNED, Blocks, Sums
from excise.stats.proportion import wilson
from excise.stats.quantile import clustered
from excise.stats.rows import Row

_SIGNED = frozenset({"dispatch", "slowdown", "unattributed", "tax"})
"""Terms that are differences: near zero their interval must be able to hold it."""


def tabulate(cell: Cell, trials: Sequence[Condensed], references: Mapping[int, Condensed], *, reference: bool) -> Row:
    """The row of one cell from its measured trials; `references` are the reference's successful trials by block."""
    good = [trial for trial in trials if trial.failure is None]
    bad = [trial for trial in trials if trial.failure is not None]
    failures = Counter(trial.failure for trial in bad if trial.failure is not None)
    found = Row(
        cell=cell,
        reference=reference,
        attempted=len(trials),
        n=len(good),
        paired=sum(_pair(trial, references) is not None for trial in good),
        failures=tuple(failures.most_common()),
        success=wilson(len(good), len(trials)),
        totals_s={block: sum(of) / len(of) for block, of in _by_block(good, lambda trial: trial.total_s).items()},
        per_success_s=_per_success(trials),
        failed_s=sum(trial.taken_s for trial in bad) / len(bad) if bad else None,
    )
    if not good:
        return found
    found = _with_times(found, good, references)
    return replace(found, **_load(trials, good)) if cell.concurrency > 1 else found


def _load(trials: Sequence[Condensed], good: Sequence[Condensed]) -> dict[str, Estimate | None]:
    """What a wave's rollouts waited, and how many a second there were; a failed one takes its time and counts for none."""
    waited = list(_by_block(good, lambda trial: trial.waited_s).values())
    ends = _by_block(trials, lambda trial: (trial.intended_ns + trial.late_ns + trial.wall_ns) / 1e9)
    counts = _by_block(trials, lambda trial: float(trial.failure is None))
    columns = {"ends": [max(of) for of in ends.values()], "good": [sum(of) for of in counts.values()]}
    return {
        "waited_p50_s": clustered(waited, 0.5),
        "waited_p95_s": clustered(waited, 0.95),
        "throughput_per_s": Blocks(columns).estimate(_ratio("good", "ends"), POSITIVE),
    }


def _pair(trial: Condensed, references: Mapping[int, Condensed]) -> Condensed | None:
    """The reference's trial beside it, if that did as many actions."""
    found = references.get(trial.block)
    return found if found is not None and len(found.actions_ns) == len(trial.actions_ns) else None


def _by_block(trials: Sequence[Condensed], of: Callable[[Condensed], float]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for trial in trials:
        found.setdefault(trial.block, []).append(of(trial))
    return found


def _actions_by_block(trials: Sequence[Condensed]) -> list[list[float]]:
    found: dict[int, list[float]] = {}
    for trial in trials:
        found.setdefault(trial.block, []).extend(took / 1e9 for took in trial.actions_ns)
    return list(found.values())


def _per_success(trials: Sequence[Condensed]) -> Estimate | None:
    """All the time spent over the number of successes."""
    spent = _by_block(trials, lambda trial: trial.taken_s)
    good = _by_block(trials, lambda trial: float(trial.failure is None))
    columns = {"spent": [sum(of) for of in spent.values()], "good": [sum(of) for of in good.values()]}
    if sum(1 for count in columns["good"] if count) < 2:  # without that one block there is nothing to divide by
        return Estimate(sum(columns["spent"]) / sum(columns["good"])) if sum(columns["good"]) else None
    return Blocks(columns).estimate(_ratio("spent", "good"), POSITIVE)


def _with_times(found: Row, good: Sequence[Condensed], references: Mapping[int, Condensed]) -> Row:
    # A trial without a reference in its block stands against itself: its start, cleanup and total are still known.
    used = [trial for trial in good if _pair(trial, references) is not None] or good
    terms = [decompose(trial, _pair(trial, references) or trial) for trial in used]
    blocks = _blocks(used, terms)

    def mean(name: str, by: str = "rollouts") -> Estimate:
        return blocks.estimate(_ratio(name, by), SIGNED if name in _SIGNED else POSITIVE)

    totals = list(_by_block(good, lambda trial: trial.total_s).values())
    actions = _actions_by_block(good)
    known = dict[str, Any](
        actions=terms[0].actions,
        estimated=any(term.estimated for term in terms),
        start_s=mean("start"),
        setup_s=mean("setup") if blocks.sums["setup"] else None,
        reset_s=mean("reset") if blocks.sums["reset"] else None,
        cleanup_s=mean("cleanup"),
        unattributed_s=mean("unattributed"),
        think_s=mean("think") if blocks.sums["think"] else None,
        total_s=mean("total"),
        total_p50_s=clustered(totals, 0.5),
        total_p95_s=clustered(totals, 0.95),
        amortised_s=mean("total", "actions"),
        action_p50_s=clustered(actions, 0.5),
        action_p95_s=clustered(actions, 0.95),
        cpu_s=mean("cpu"),
        written_bytes=mean("written") if all(trial.written_bytes is not None for trial in used) else None,
        blocks=blocks,
    )
    if found.paired:
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


def _blocks(trials: Sequence[Condensed], terms: Sequence[Terms]) -> Blocks:
    """Sums over each block's trials, by name."""
    found: dict[int, dict[str, float]] = {}
    for trial, term in zip(trials, terms, strict=True):
        sums = found.setdefault(trial.block, {})
        for name, value in _values(trial, term).items():
            sums[name] = sums.get(name, 0.0) + value
    ids = sorted(found)
    return Blocks({name: [found[block][name] for block in ids] for name in found[ids[0]]}, ids)


def _values(trial: Condensed, term: Terms) -> dict[str, float]:
    fixed_s = term.start_s + term.setup_s + term.reset_s + term.cleanup_s
    return {
        "rollouts": 1.0,
        "actions": float(term.actions),
        "start": term.start_s,
        "setup": term.setup_s,
        "reset": term.reset_s,
        "cleanup": term.cleanup_s,
        "fixed": fixed_s,
        # The harness's own time between the verbs goes with the actions, so that the line meets the total.
        "acting": term.total_s - fixed_s,
        "dispatch": term.dispatch_s,
        "slowdown": term.slowdown_s,
        "work": term.work_s,
        "unattributed": term.unattributed_s,
        "think": term.think_s,
        "tax": term.tax_s,
        "total": term.total_s,
        "cpu": trial.cpu_s,
        "written": float(trial.written_bytes or 0),
        **{name: trial.stages_ns.get(name, 0) / 1e9 for name in STAGES},
        **{name: trial.journey_ns.get(name, 0) / 1e9 for name in JOURNEY},
    }
