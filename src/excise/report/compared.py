"""A comparison of two runs as text and as Markdown."""

from collections.abc import Iterator, Sequence

from excise.report.numbers import NOTHING, interval, short
from excise.report.projected import aligned
from excise.stats.comparison import Change, Comparison
from excise.stats.estimate import Estimate

_HEADS = ("", "", "before", "after", "after / before", "")


def text(found: Comparison) -> str:
    """For a terminal."""
    lines: list[list[str]] = [list(_HEADS)]
    for change in found.changes:
        lines.append([change.name, change.metric, *(shown for shown, _ in _numbers(change)), change.verdict])
        ends = [ends for _, ends in _numbers(change)]
        if any(ends):
            lines.append(["", "", *ends, ""])
    if _within_one(found):
        lines = [line[:2] + line[4:] for line in lines]
        lines[0][2] = f"/ {found.to}"
    return aligned(lines) + "\n\n" + "\n".join(_notes(found)) + "\n"


def markdown(found: Comparison, title: str) -> str:
    """For a step summary."""
    heads = ("what", "number", "before", "after", "after / before", "verdict")
    lines = [f"### {title}", "", _row(heads), _row(["---"] * len(heads))]
    for change in found.changes:
        numbers = [shown + (f" ({ends})" if ends else "") for shown, ends in _numbers(change)]
        verdict = f"**{change.verdict}**" if change in found.slower else change.verdict
        lines.append(_row([change.name, change.metric, *numbers, verdict]))
    return "\n".join([*lines, "", *_notes(found)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _numbers(change: Change) -> Iterator[tuple[str, str]]:
    for estimate in (change.before, change.after, change.ratio):
        yield _shown(estimate)


def _shown(estimate: Estimate | None) -> tuple[str, str]:
    return (NOTHING, "") if estimate is None else (short(estimate.value), interval(estimate))


def _notes(found: Comparison) -> Iterator[str]:
    if _within_one(found):
        yield f"Each to {found.to}, within blocks of the one run."
    else:
        yield f"before and after are in units of {found.to}, each of its own run: absolute times are not compared."
    yield (
        f"slower: the whole 95 % interval is above {found.threshold:g}; faster: below {1 / found.threshold:.3g}; "
        "same: between; unsure: neither."
    )
    for where, names in (("first", found.only_before), ("second", found.only_after)):
        if names:
            yield f"Only in the {where} run: {', '.join(names)}."
    count, unsure = len(found.slower), sum(change.verdict == "unsure" for change in found.changes)
    yield f"{count} of {len(found.changes)} got slower or broke." if count else "Nothing got slower beyond the threshold."
    if unsure:
        yield f"Of {unsure} nobody can tell yet: more blocks narrow their intervals."


def _within_one(found: Comparison) -> bool:
    return all(change.before is None for change in found.changes)
