"""Where you pay: each substrate's rollout split into its terms (Figure 1), and how the split moves with length (Figure 4)."""

from collections.abc import Sequence
from typing import Any

from excise.report.facts import Facts, family
from excise.report.figures.engine import Channel, Chart, alt
from excise.report.figures.marks import INK, PAPER, Span, Values, above, dots, finished, height, inline, rows_of, shortened
from excise.report.figures.theme import LIGHT
from excise.report.numbers import counted, duration, interval, percent, short
from excise.report.parts import Absent, Figure, Part, Table
from excise.report.terms import TERMS, parts_s
from excise.stats.rows import Row

_LABELLED = 0.11
"""Of a bar: what is narrower has no room for its number."""


def decomposition(facts: Facts) -> Part:
    """Figure 1: by substrate, what a rollout's time goes to."""
    rows = sorted((row for row in facts.main if row.tax_s is not None), key=_total)
    title = "Where you pay"
    if not rows:
        return Absent(name="decomposition", title=title, remedy=_no_reference(facts))
    dearest = rows[-1]
    largest = max(parts_s(dearest).items(), key=lambda part: part[1])
    return Figure(
        name="decomposition",
        title=f"{title}: a rollout of {facts.workload} by substrate",
        caption=f"Bars: share of a rollout's mean time. Dots: that time on a logarithmic axis, "
        f"{facts.with_intervals('lines are 95 % intervals')}. "
        f"{dearest.actions} actions a rollout, {counted(row.n for row in rows)}. "
        "Work is what the same actions take as plain processes on the "
        "same files; all else is tax. A slowdown below zero is not drawn; the table has it.",
        alt=f"Stacked bars. On {dearest.address} a rollout takes {duration(_total(dearest))}, and {largest[0]} is the largest "
        f"part of it with {duration(largest[1])}. Every number is in the table that follows.",
        table=_table(rows),
        draw=lambda wide: _draw(rows, wide=wide),
    )


def _no_reference(facts: Facts) -> str:
    if not facts.main:
        return "no trial of its workload succeeded"
    return "no reference ran beside these trials; `excise measure --reference chroot` measures it"


def _total(row: Row) -> float:
    return 0.0 if row.total_s is None else row.total_s.value


def _draw(rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    names = {row.cell: shortened(row.name) for row in rows}
    px = 420 if wide else 300
    bars = _bars([(names[row.cell], row) for row in rows], px, wide=wide)
    values: Values = [
        {
            "name": names[row.cell],
            "value": row.total_s.value,
            "label": duration(row.total_s.value),
            "colour": INK,
            "shape": "circle",
        }
        | _ends(row)
        for row in rows
        if row.total_s is not None
    ]
    reach = [value.get("high", value["value"]) for value in values] + [value.get("low", value["value"]) for value in values]
    side = 150 if wide else 300
    span = Span(reach, label_px=62, width_px=side)
    totals = dots(values, span, "mean time of a rollout", wide=wide, px=side, named=False)
    together = alt.hconcat if wide else alt.vconcat
    return finished(together(bars, totals, spacing=14))


def _ends(row: Row) -> dict[str, float]:
    total = row.total_s
    return {} if total is None or total.low is None or total.high is None else {"low": total.low, "high": total.high}


def _bars(rows: Sequence[tuple[str, Row]], px: int, *, wide: bool) -> Chart:
    names = [name for name, _ in rows]
    values = [value for name, row in rows for value in _segments(row, name=name)]
    y = rows_of(names, wide=wide)
    size = 20 if wide else 18
    bars = (
        alt.Chart(inline(values))
        .mark_bar(height=size, stroke=PAPER, strokeWidth=1, yOffset=0 if wide else 8)
        .encode(
            x=alt.X("from:Q", axis=_shares("share of a rollout's time"), scale=alt.Scale(domain=[0, 1])),
            x2="to:Q",
            y=y,
            color=alt.Color("term:N", scale=_term_scale(values), legend=alt.Legend(title=None, columns=6 if wide else 3)),
        )
    )
    large = [value for value in values if value["share"] >= _LABELLED]
    numbers = (
        alt.Chart(inline(large))
        .mark_text(baseline="middle", fontSize=11, yOffset=0 if wide else 8)
        .encode(x=alt.X("middle:Q"), y=y, text="label:N", color=alt.Color("on:N", scale=None))
    )
    layers: list[Any] = [bars, numbers] if wide else [bars, numbers, above(names, y)]
    return alt.layer(*layers).properties(width=px, height=height(len(names), wide=wide))


def _shares(title: str | None) -> Channel:
    return alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1], title=title)


def _term_scale(values: Values) -> Channel:
    used = {value["term"] for value in values}
    terms = [term for term in TERMS if term in used]
    return alt.Scale(domain=terms, range=[LIGHT[term] for term in terms])


def _segments(row: Row, **more: Any) -> Values:
    """The row's terms one after the other, of all that is above zero."""
    parts = {term: max(0.0, seconds) for term, seconds in parts_s(row).items()}
    whole = sum(parts.values()) or 1.0
    found, at = list[dict[str, Any]](), 0.0
    for term, seconds in parts.items():
        share = seconds / whole
        if share > 0.0005:
            found.append(
                {
                    "term": term,
                    "share": share,
                    "from": at,
                    "to": at + share,
                    "middle": at + share / 2,
                    "label": f"{100 * share:.0f} %",
                    "on": LIGHT["on-dark"] if term == "start" else LIGHT["on-light"],
                    **more,
                }
            )
        at += share
    return found


def _table(rows: Sequence[Row]) -> Table:
    terms = [term for term in TERMS if any(term in parts_s(row) for row in rows)]
    heads = ("substrate", *(f"{term} (ms)" for term in terms), "total (ms)", "95 % interval", "tax rate (%)", "n")
    body: list[tuple[str, ...]] = []
    for row in rows:
        parts = parts_s(row)
        assert row.total_s is not None
        assert row.tax_rate is not None
        shown = [short(parts[term] * 1e3) if term in parts else "-" for term in terms]
        total = (short(row.total_s.value * 1e3), interval(row.total_s, 1e3) or "-")
        body.append((row.name, *shown, *total, percent(row.tax_rate)[0], str(row.n)))
    return Table(name="decomposition", title="What a rollout's mean time goes to", heads=heads, rows=tuple(body))


def lengths(facts: Facts) -> dict[str, list[Row]]:
    """By tier, the rows of those whose rollouts were measured in several lengths."""
    found: dict[str, dict[tuple[str, int], Row]] = {}
    for row in facts.rows:
        if row.total_s is not None and not row.cell.factors():
            rows = found.setdefault(family(row.cell.workload), {})
            before = rows.get((row.address, row.actions))
            if before is None or before.n < row.n:
                rows[row.address, row.actions] = row
    return {name: list(rows.values()) for name, rows in found.items() if len({row.actions for row in rows.values()}) > 1}


def composition(facts: Facts) -> Part:
    """Figure 4: the split as trajectories lengthen."""
    title = "Composition as trajectories lengthen"
    several = lengths(facts)
    if not several:
        return Absent(name="composition", title=title, remedy="`excise measure --plan fig4` measures it")
    name, rows = max(several.items(), key=lambda item: len(item[1]))
    rows = [row for row in rows if row.tax_s is not None]
    if not rows:
        return Absent(name="composition", title=title, remedy=_no_reference(facts))
    steps = sorted({row.actions for row in rows})
    return Figure(
        name="composition",
        title=title,
        caption=f"Share of a rollout's mean time of {name}, by substrate and number of actions; "
        f"{counted(row.n for row in rows)}.",
        alt=f"Stacked bars by number of actions ({', '.join(map(str, steps))}) for each substrate. Every number is in the "
        "table that follows.",
        table=_composition_table(rows),
        draw=lambda wide: _draw_composition(rows, wide=wide),
    )


def _draw_composition(rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    steps = sorted({row.actions for row in rows})
    addresses = list(dict.fromkeys(row.address for row in rows))
    columns = min(len(addresses), 4 if wide else 2)
    px = round((640 if wide else 270) / columns) - 12
    values = [v for row in rows for v in _segments(row, substrate=shortened(row.address), actions=str(row.actions))]
    bars = (
        alt.Chart(inline(values))
        .mark_bar(stroke=PAPER, strokeWidth=1)
        .encode(
            x=alt.X("actions:O", sort=list(map(str, steps)), axis=alt.Axis(title="actions", labelAngle=0)),
            y=alt.Y("from:Q", axis=_shares(None), scale=alt.Scale(domain=[0, 1])),
            y2="to:Q",
            color=alt.Color("term:N", scale=_term_scale(values), legend=alt.Legend(title=None, columns=6 if wide else 3)),
        )
        .properties(width=px, height=150)
    )
    facet = alt.Facet("substrate:N", sort=list(map(shortened, addresses)), title=None)
    return finished(bars.facet(facet=facet, columns=columns).properties(spacing=14))


def _composition_table(rows: Sequence[Row]) -> Table:
    terms = [term for term in TERMS if any(term in parts_s(row) for row in rows)]
    body: list[tuple[str, ...]] = []
    for row in sorted(rows, key=lambda row: (row.address, row.actions)):
        parts, whole = parts_s(row), _total(row)
        shown = [f"{100 * parts[term] / whole:.1f}" if term in parts else "-" for term in terms]
        body.append((row.address, str(row.actions), *shown, str(row.n)))
    heads = ("substrate", "actions", *(f"{term} (%)" for term in terms), "n")
    return Table(name="composition", title="Share of a rollout's mean time", heads=heads, rows=tuple(body))
