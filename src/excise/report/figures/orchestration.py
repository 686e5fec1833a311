"""What a control plane takes: a start split into the stages that its watch showed, by start state and rollouts at once."""

from collections.abc import Sequence
from typing import Any

from excise.meter.records import STAGES, STATES
from excise.report.facts import Facts
from excise.report.figures.engine import Chart, alt
from excise.report.figures.marks import INK, PAPER, Span, Values, above, dots, finished, height, inline, rows_of, shortened
from excise.report.figures.theme import LIGHT
from excise.report.numbers import NOTHING, counted, duration, interval, short
from excise.report.parts import Figure, Part, Table
from excise.stats.rows import Row
from excise.stats.stages import UNATTRIBUTED, stages_s

_NAME, _TITLE = "orchestration", "What the control plane takes"
_COLOURS = {
    "accepted": LIGHT["reset"],
    "scheduled": LIGHT["setup"],
    "pulled": LIGHT["dispatch"],
    "started": LIGHT["start"],
    "ready": LIGHT["cleanup"],
    UNATTRIBUTED: LIGHT[UNATTRIBUTED],
}
_LABELLED = 0.11
"""Of a bar: what is narrower has no room for its number."""


def orchestration(facts: Facts) -> list[Part]:
    """Nothing where no row's start was orchestrated."""
    rows = [row for row in facts.rows if stages_s(row)]
    if not rows:
        return []
    addresses = list(dict.fromkeys(row.address for row in rows))
    rows = sorted(rows, key=lambda row: (addresses.index(row.address), row.cell.workload, *_place(row)))
    drawn = _drawn(rows)
    slowest = max(drawn, key=_start)
    name, largest = max(stages_s(slowest).items(), key=lambda item: item[1].value)
    ends = facts.with_intervals("lines are 95 % intervals")
    return [
        Figure(
            name=_NAME,
            title=_TITLE,
            caption="Bars: share of a start's mean time by stage. Accepted: the API has the pod; scheduled: a node is chosen; "
            "pulled: its image is there, where it was not; started: network, cgroups and container; ready: from there to a "
            f"first command's answer. Dots: the whole start on a logarithmic axis, {ends}. "
            f"x4: four at once. {drawn[0].cell.workload}, {counted(row.n for row in drawn)}.",
            alt=f"Stacked bars. A start takes {duration(_start(slowest))} for {_called(slowest)}, {duration(largest.value)} "
            f"of it {name}. Every number is in the table that follows.",
            table=_table(rows),
            draw=lambda wide: _draw(drawn, wide=wide),
        )
    ]


def _place(row: Row) -> tuple[int, int]:
    return STATES.index(row.cell.state), row.cell.concurrency


def _drawn(rows: Sequence[Row]) -> list[Row]:
    """Those of the workload that has most: what is in a sandbox later changes nothing of its start."""
    by_workload: dict[str, list[Row]] = {}
    for row in rows:
        by_workload.setdefault(row.cell.workload, []).append(row)
    return max(by_workload.values(), key=len)


def _called(row: Row) -> str:
    """What stands in no other way beside the bar is in the table."""
    factors = [value for name, value in row.cell.factors().items() if name not in ("state", "concurrency")]
    at_once = [f"x{row.cell.concurrency}"] if row.cell.concurrency > 1 and not row.cell.arrivals_per_s else []
    return " ".join((shortened(row.address), row.cell.state, *factors, *at_once))


def _start(row: Row) -> float:
    return 0.0 if row.start_s is None else row.start_s.value


def _draw(rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    bars = _bars(rows, 380 if wide else 300, wide=wide)
    values: Values = []
    for row in rows:
        assert row.start_s is not None
        one = row.start_s
        ends = {} if one.low is None or one.high is None else {"low": one.low, "high": one.high}
        mark = {"name": _called(row), "colour": INK, "shape": "circle"}
        values.append({**mark, "value": one.value, "label": duration(one.value), **ends})
    side = 150 if wide else 300
    span = Span([value.get(end, value["value"]) for value in values for end in ("low", "high")], label_px=62, width_px=side)
    totals = dots(values, span, "mean time of a start", wide=wide, px=side, named=False)
    return finished((alt.hconcat if wide else alt.vconcat)(bars, totals, spacing=14))


def _bars(rows: Sequence[Row], px: int, *, wide: bool) -> Chart:
    names = [_called(row) for row in rows]
    values = [value for row in rows for value in _segments(row)]
    used = [stage for stage in _COLOURS if any(value["stage"] == stage for value in values)]
    scale = alt.Scale(domain=used, range=[_COLOURS[stage] for stage in used])
    y, below = rows_of(names, wide=wide), 0 if wide else 8
    axis = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1], title="share of a start's time")
    bars = (
        alt.Chart(inline(values))
        .mark_bar(height=20 if wide else 18, stroke=PAPER, strokeWidth=1, yOffset=below)
        .encode(
            x=alt.X("from:Q", axis=axis, scale=alt.Scale(domain=[0, 1])),
            x2="to:Q",
            y=y,
            color=alt.Color("stage:N", scale=scale, legend=alt.Legend(title=None, columns=6 if wide else 3)),
        )
    )
    numbers = (
        alt.Chart(inline([value for value in values if value["to"] - value["from"] >= _LABELLED]))
        .mark_text(baseline="middle", fontSize=11, yOffset=below)
        .encode(x=alt.X("middle:Q"), y=y, text="label:N", color=alt.Color("on:N", scale=None))
    )
    layers: list[Any] = [bars, numbers] if wide else [bars, numbers, above(names, y)]
    return alt.layer(*layers).properties(width=px, height=height(len(names), wide=wide))


def _segments(row: Row) -> Values:
    """The row's stages one after the other, in the order they come."""
    parts = {stage: max(0.0, one.value) for stage, one in stages_s(row).items()}
    whole, at, found = sum(parts.values()), 0.0, list[dict[str, Any]]()
    for stage, seconds in parts.items():
        share = seconds / whole
        if share > 0.0005:
            found.append(
                {
                    "name": _called(row),
                    "stage": stage,
                    "from": at,
                    "to": at + share,
                    "middle": at + share / 2,
                    "label": duration(seconds),
                    "on": LIGHT["on-dark"] if stage in ("started", "scheduled") else LIGHT["on-light"],
                }
            )
        at += share
    return found


def _table(rows: Sequence[Row]) -> Table:
    stages = [stage for stage in (*STAGES, UNATTRIBUTED) if any(stage in stages_s(row) for row in rows)]
    heads = (
        *("substrate", "workload", "state", "at once"),
        *(head for stage in stages for head in (f"{stage} (ms)", "95 % interval")),
        *("start (ms)", "95 % interval", "n"),
    )
    body: list[tuple[str, ...]] = []
    for row in rows:
        assert row.start_s is not None
        found = {**stages_s(row), "start": row.start_s}
        shown: list[str] = []
        for stage in (*stages, "start"):
            one = found.get(stage)
            shown += (NOTHING, NOTHING) if one is None else (short(one.value * 1e3), interval(one, 1e3) or NOTHING)
        cell = row.cell
        count = str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}"
        body.append((row.address, cell.workload, cell.state, str(cell.concurrency), *shown, count))
    return Table(
        name=_NAME, title="A start's mean time by stage of the control plane", heads=heads, rows=tuple(body), numbers=3
    )
