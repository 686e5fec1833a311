"""Until work can begin: the median by substrate and tier (Figure 2), and the whole distribution (Figure 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excise.report.facts import Facts, family
from excise.report.figures.engine import alt
from excise.report.figures.lines import Curve, curves
from excise.report.figures.marks import Span, Values, dots, finished, shortened, width
from excise.report.figures.theme import SERIES, SHAPES
from excise.report.numbers import counted, duration, interval, short
from excise.report.parts import Absent, Figure, Part, Table
from excise.stats.estimate import Estimate
from excise.stats.quantile import clustered, point
from excise.stats.rows import Row

_MOST_STEPS = 120
"""Of a drawn distribution: more cannot be seen apart."""


@dataclass(frozen=True)
class Starts:
    """One row's starts, and their median where there are enough."""

    row: Row
    ordered_s: list[float]
    median: Estimate | None
    p95: Estimate | None


def starts(facts: Facts) -> list[Starts]:
    """Of every row with the usual factors, or with another state of the image; by substrate, then tier."""
    found: list[Starts] = []
    for row in facts.rows:
        if row.n and not set(row.cell.factors()) - {"state"} and row.cell.reset == "recreate":
            by_block = facts.run.starts_s(row.cell)
            ordered = sorted(value for block in by_block for value in block)
            found.append(Starts(row, ordered, clustered(by_block, 0.5), clustered(by_block, 0.95)))
    return found


def by_tier(facts: Facts) -> Part:
    """Figure 2."""
    title, name = "Cold start by substrate and tier", "cold-starts"
    found = [one for one in _shortest(starts(facts)) if one.median is not None]
    if not found:
        return Absent(name=name, title=title, remedy="it needs 6 trials a cell: `excise measure --blocks 6` measures it")
    found.sort(key=_median)
    fastest, slowest = found[0], found[-1]
    tiers = sorted({family(one.row.cell.workload) for one in found})
    places = list(dict.fromkeys(one.row.address for one in found))  # the fastest first, each with its tiers together
    found.sort(key=lambda one: (places.index(one.row.address), family(one.row.cell.workload)))
    assert fastest.median is not None
    assert slowest.median is not None
    return Figure(
        name=name,
        title=title,
        caption=f"Median time from asking for a sandbox to its start state: a first command's answer, then the tier's set-up; "
        f"lines are 95 % intervals by order statistics; {counted(len(one.ordered_s) for one in found)} starts each.",
        alt=f"Dots on a logarithmic axis. {fastest.row.name} starts in {duration(fastest.median.value)}, {slowest.row.name} "
        f"takes {duration(slowest.median.value)}: {short(slowest.median.value / fastest.median.value)} times as long. Every "
        "number is in the table that follows.",
        table=_table(found),
        draw=lambda wide: _draw_tiers(found, tiers, wide=wide),
    )


def _median(one: Starts) -> float:
    return 0.0 if one.median is None else one.median.value


def _shortest(found: Sequence[Starts]) -> list[Starts]:
    """One for each substrate, tier and state: rollouts of other lengths start alike, and the most trials speak."""
    best: dict[tuple[str, str, str], Starts] = {}
    for one in found:
        key = (one.row.address, family(one.row.cell.workload), one.row.cell.state)
        if key not in best or len(one.ordered_s) > len(best[key].ordered_s):
            best[key] = one
    return list(best.values())


def _draw_tiers(found: Sequence[Starts], tiers: Sequence[str], *, wide: bool) -> dict[str, Any]:
    values: Values = []
    for one in found:
        assert one.median is not None
        number = tiers.index(family(one.row.cell.workload))
        called = one.row.name if len(tiers) == 1 else f"{one.row.name}, {tiers[number]}"
        values.append(
            {
                "name": shortened(called),
                "value": one.median.value,
                "label": duration(one.median.value),
                "colour": SERIES[number % len(SERIES)],
                "shape": SHAPES[number % len(SHAPES)],
                "low": one.median.low,
                "high": one.median.high,
            }
        )
    px = 500 if wide else 300
    span = Span([v[end] for v in values for end in ("low", "high")], label_px=66, width_px=px)
    return finished(dots(values, span, "p50 of the time to the start state", wide=wide, px=px))


def _table(found: Sequence[Starts]) -> Table:
    body: list[tuple[str, ...]] = []
    for one in found:
        assert one.median is not None
        body.append(
            (
                one.row.name,
                one.row.cell.workload,
                short(one.median.value * 1e3),
                interval(one.median, 1e3),
                "-" if one.p95 is None else short(one.p95.value * 1e3),
                str(len(one.ordered_s)),
            )
        )
    heads = ("substrate", "workload", "p50 (ms)", "95 % interval", "p95 (ms)", "n")
    return Table(name="cold-starts", title="Cold starts", heads=heads, rows=tuple(body), numbers=2)


def distribution(facts: Facts) -> Part:
    """Figure 3."""
    title, name = "The distribution of cold starts", "cold-start-distribution"
    main = {row.cell for row in facts.main}
    found = [one for one in starts(facts) if one.row.cell in main and len(one.ordered_s) > 1]
    if not found:
        return Absent(name=name, title=title, remedy="it needs several trials a cell: `excise measure --blocks 30` measures it")
    found.sort(key=lambda one: point(one.ordered_s, 0.5))
    widest = max(found, key=lambda one: one.ordered_s[-1] / one.ordered_s[0])
    return Figure(
        name=name,
        title=title,
        caption=f"For each substrate the share of starts of {facts.workload} that were done by a time; every trial counts, "
        f"nothing is trimmed; {counted(len(one.ordered_s) for one in found)} starts each.",
        alt=f"Rising steps on a logarithmic axis. {widest.row.name} varies most, from {duration(widest.ordered_s[0])} to "
        f"{duration(widest.ordered_s[-1])}. Quantiles are in the table that follows.",
        table=_quantiles(found),
        draw=lambda wide: _draw_distribution(found, facts, wide=wide),
    )


def _draw_distribution(found: Sequence[Starts], facts: Facts, *, wide: bool) -> dict[str, Any]:
    lines = [
        Curve(
            name=shortened(one.row.name),
            tone=facts.tones[one.row.address],
            points=_steps(one.ordered_s),
        )
        for one in found
    ]
    longest = max(len(line.name) for line in lines)
    span = Span([x for line in lines for x, _ in line.points], label_px=longest * 5, width_px=width(wide))
    x = alt.X("x:Q", scale=span.scale(), axis=span.axis("time to the start state"))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", title="share of starts done", tickCount=5))
    return finished(curves(lines, x, y, wide=wide, step=True, label_at=_middles(lines)))


def _middles(lines: Sequence[Curve]) -> Mapping[str, tuple[float, float]]:
    """Names stand where their curve passes a level of its own, so that neighbours do not share a line of text."""
    count = len(lines)
    found: dict[str, tuple[float, float]] = {}
    for index, line in enumerate(lines):
        level = 0.12 + 0.76 * (index + 0.5) / count
        found[line.name] = (next(x for x, share in line.points if share >= level), level)
    return found


def _steps(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """Of a large sample every so many-th value, and always both ends."""
    n = len(ordered)
    every = max(1, n // _MOST_STEPS)
    places = sorted({0, n - 1, *range(0, n, every)})
    return [(ordered[0], 0.0), *((ordered[place], (place + 1) / n) for place in places)]


def _quantiles(found: Sequence[Starts]) -> Table:
    shown = (0.0, 0.25, 0.5, 0.75, 1.0)
    heads = ("substrate", "least (ms)", "p25 (ms)", "p50 (ms)", "p75 (ms)", "most (ms)", "n")
    body = tuple(
        (one.row.name, *(short(point(one.ordered_s, q) * 1e3) for q in shown), str(len(one.ordered_s))) for one in found
    )
    return Table(name="cold-start-distribution", title="Quantiles of cold starts", heads=heads, rows=body)
