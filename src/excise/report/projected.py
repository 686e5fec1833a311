"""A projection as text: the totals, how they go with each factor, and where rows cost the same."""

import itertools
import math
from collections.abc import Iterable, Sequence

from excise.report.numbers import NOTHING, interval, short
from excise.stats.breakeven import BreakEven, break_even
from excise.stats.estimate import Estimate
from excise.stats.projection import SENSITIVITY, Projection, Scenario, project, sensitivity, workers
from excise.stats.subjects import Subject

COMPOSED = "*"
_FACTORS = {
    "actions": "actions a rollout",
    "rollouts": "rollouts",
    "think_s": "seconds of thinking after each action",
    "reuse": "rollouts in one sandbox (resetting it counts as nothing here)",
    "failure_rate": "share that fails, at their end, and is run again",
}
_OF_A_WHOLE = ("rollouts", "think_s", "failure_rate")


def text(subjects: Sequence[Subject], deadline_s: float | None = None) -> str:
    """All of it, as plain text."""
    found = [(subject, project(subject.costs, subject.scenario)) for subject in subjects]
    parts = [
        _heading(subjects[0].scenario, deadline_s),
        _totals(found, deadline_s),
        *_differences(found),
        *_curves(subjects),
        *_break_evens(subjects),
        *_notes(found),
    ]
    return "\n\n".join(parts) + "\n"


def _heading(scenario: Scenario, deadline_s: float | None) -> str:
    parts = [f"{count(scenario.rollouts)} rollouts of {scenario.actions} actions"]
    if scenario.think_s:
        parts.append(f"{scenario.think_s:g} s of thinking after each")
    if scenario.reuse > 1:
        parts.append(f"{scenario.reuse} in one sandbox")
    if deadline_s is not None:
        parts.append(f"done in {deadline_s / 3600:g} h")
    return ", ".join(parts)


def count(value: float) -> str:
    """`1,000,000`."""
    return f"{value:,.0f}"


def _totals(found: Sequence[tuple[Subject, Projection]], deadline_s: float | None) -> str:
    heads = ["", "s a rollout", "worker-hours", *(["workers"] if deadline_s is not None else [])]
    lines = [heads]
    for subject, one in found:
        needed = [] if deadline_s is None else [workers(one.total_s, one.scenario.rollouts, deadline_s)]
        mark = COMPOSED if one.composed else ""
        lines.append([subject.name + mark, short(one.total_s.value), count(one.hours.value), *map(_whole, needed)])
        ends = [interval(one.total_s), _ends(one.hours), *map(_ends, needed)]
        if any(ends):
            lines.append(["", *ends])
    return aligned(lines)


def _whole(estimate: Estimate) -> str:
    return "none is enough" if estimate.value == math.inf else count(estimate.value)


def _ends(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return "..".join("no end" if end == math.inf else count(end) for end in (estimate.low, estimate.high))


def _differences(found: Sequence[tuple[Subject, Projection]]) -> list[str]:
    """Of times that were given, each to the first; of rows, what-ifs and break-evens say it with their intervals."""
    if any(subject.costs.blocks is not None for subject, _ in found):
        return []
    (first, dearest), *others = found
    return [
        f"{subject.name} instead of {first.name}: {count(abs(saved))} worker-hours {'less' if saved >= 0 else 'more'}"
        for subject, one in others
        for saved in [dearest.hours.value - one.hours.value]
    ]


def _curves(subjects: Sequence[Subject]) -> list[str]:
    over = [(factor, values) for factor, values in SENSITIVITY if factor in _OF_A_WHOLE or not any(s.whole for s in subjects)]
    curves = [sensitivity(subject.costs, subject.scenario, over) for subject in subjects]
    found: list[str] = []
    for index, (factor, values) in enumerate(over):
        lines = [["", *(_value(factor, value) for value in values)]]
        for subject, own in zip(subjects, curves, strict=True):
            hours = [one.hours for _, one in own[index].points]
            lines.append([subject.name, *(count(each.value) for each in hours)])
            if any(_ends(each) for each in hours):
                lines.append(["", *map(_ends, hours)])
        found.append(f"Worker-hours by {_FACTORS[factor]}\n{aligned(lines)}")
    return found


def _value(factor: str, value: float) -> str:
    return f"{100 * value:g} %" if factor == "failure_rate" else f"{value:,.0f}" if factor == "rollouts" else f"{value:g}"


def _break_evens(subjects: Sequence[Subject]) -> list[str]:
    if any(subject.whole for subject in subjects):
        return []
    lines = [
        line
        for one, other in itertools.combinations(subjects, 2)
        if one.workload == other.workload and (line := said(one.name, other.name, break_even(one.costs, other.costs)))
    ]
    return ["Break-even\n" + "\n".join(lines)] if lines else []


def said(first: str, second: str, found: BreakEven) -> str:
    """A crossing as a sentence; nothing where one is cheaper at every length."""
    if found.length is None:
        return ""
    longer, shorter = (second, first) if found.above else (first, second)
    ends = "" if found.length.low is None else f" ({_ends(found.length)})"
    return f"  {longer} is cheaper than {shorter} above {short(found.length.value)} actions{ends}"


def _notes(found: Sequence[tuple[Subject, Projection]]) -> list[str]:
    notes: list[str] = []
    measured = sorted({str(s.costs.measured) for s, one in found if one.composed})
    if measured:
        notes.append(
            f"{COMPOSED} composed: the trials had {' or '.join(measured)} actions; start + actions x mean action + cleanup."
        )
    for subject, one in found:
        if one.scenario.failure_rate:
            notes.append(f"{subject.name}: {100 * one.scenario.failure_rate:.1f} % fail, and their time is in it.")
    if any(one.hours.low is not None for _, one in found):
        notes.append("low..high is a number's 95 % interval.")
    elif any(subject.costs.blocks is not None for subject, _ in found):
        notes.append(f"{NOTHING} too few blocks for intervals.")
    return ["\n".join(notes)] if notes else []


def aligned(lines: Iterable[Sequence[str]]) -> str:
    """Columns: the first to the left, numbers to the right."""
    grid = [list(line) for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(*grid, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in grid
    )
