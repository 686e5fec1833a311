"""What each start state saves: claims by what there was before them, and the core-seconds of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from excise.report.facts import Tone
from excise.report.figures.engine import Chart, alt
from excise.report.figures.marks import Span, Values, finished, inline
from excise.report.numbers import counted, duration
from excise.report.parts import Absent, Figure, Part, Table
from excise.report.pool_words import STARTS, every_row, start_of, tones
from excise.stats.pools import PoolRow

_NAME, _TITLE = "claims-by-depth", "What is there before a claim"
_ROW_PX = 17
"""Of one substrate's mark; those of one start state stand together."""


def by_depth(rows: Sequence[PoolRow]) -> list[Part]:
    """Nothing where the run is not about single claims of one task, made of several starts."""
    own = [row for row in rows if row.cell.zipf is None]
    if any(row.cell.claims > 1 for row in own) or len({start_of(row.cell) for row in own}) < 2:
        return []
    known = [row for row in own if row.p50_s is not None]
    if not known:
        return [Absent(name=_NAME, title=_TITLE, remedy="a median needs 6 blocks: `excise measure --plan warm --blocks 6`")]
    known.sort(key=lambda row: (STARTS.index(start_of(row.cell)), row.cell.source))
    slow, fast = (pick(known, key=lambda row: row.p50_s.value if row.p50_s else 0.0) for pick in (max, min))
    assert slow.p50_s is not None
    assert fast.p50_s is not None
    return [
        Figure(
            name=_NAME,
            title=_TITLE,
            caption="Left: p50 from asking for a sandbox to the task's start state, on a logarithmic axis; lines are 95 % "
            "intervals by order statistics. Right: core-seconds of the whole host from the claim until all is closed; what was "
            f"made ahead is in the table. {counted(row.n for row in known)}.",
            alt=f"Dots by start state. {slow.cell.source} with {start_of(slow.cell)} takes {duration(slow.p50_s.value)}, "
            f"{fast.cell.source} with {start_of(fast.cell)} {duration(fast.p50_s.value)}. Every number is in the table that "
            "follows.",
            table=_table(known),
            draw=lambda wide: _draw(known, tones(rows), wide=wide),
        )
    ]


def _table(rows: Sequence[PoolRow]) -> Table:
    whole = every_row(rows)
    shown = [n for n, head in enumerate(whole.heads) if head not in ("claims at once", "a second", "Zipf", "places")]
    body = tuple(tuple(row[n] for n in shown) for row in whole.rows)
    return Table(name=_NAME, title=_TITLE, heads=tuple(whole.heads[n] for n in shown), rows=body, numbers=3)


def _draw(rows: Sequence[PoolRow], looks: Mapping[str, Tone], *, wide: bool) -> dict[str, Any]:
    values = [_value(row) for row in rows]
    px = 300 if wide else 165
    span = Span([v[end] for v in values for end in ("low", "high")], label_px=62, width_px=px)
    x = alt.X("value:Q", scale=span.scale(), axis=span.axis("p50 to the start state"))
    times = _panel(looks, values, x, px, named=True)
    spent: Values = [
        {**value, "value": row.cpu_s.value, "low": row.cpu_s.low, "high": row.cpu_s.high, "label": f"{row.cpu_s.value:.2f}"}
        for value, row in zip(values, rows, strict=True)
        if row.cpu_s is not None
    ]
    most = max((v["high"] or v["value"] for v in spent), default=1.0)
    side = 130 if wide else 165
    scale = alt.Scale(domain=[0, most * (1.45 if wide else 1.25)])
    cpu_x = alt.X("value:Q", scale=scale, axis=alt.Axis(title="core-seconds", tickCount=4))
    cpu = _panel(looks, spent, cpu_x, side, named=not wide)
    return finished((alt.hconcat if wide else alt.vconcat)(times, cpu, spacing=14))


def _value(row: PoolRow) -> dict[str, Any]:
    assert row.p50_s is not None
    return {
        "start": start_of(row.cell),
        "source": row.cell.source,
        "value": row.p50_s.value,
        "low": row.p50_s.value if row.p50_s.low is None else row.p50_s.low,
        "high": row.p50_s.value if row.p50_s.high is None else row.p50_s.high,
        "label": duration(row.p50_s.value),
    }


def _panel(looks: Mapping[str, Tone], values: Values, x: Any, px: int, *, named: bool) -> Chart:
    names = [name for name in looks if any(value["source"] == name for value in values)]
    starts = [start for start in STARTS if any(value["start"] == start for value in values)]
    axis = alt.Axis(title=None, ticks=False, domain=False, labelPadding=8, labelLimit=200) if named else None
    y = alt.Y("start:N", sort=starts, axis=axis, scale=alt.Scale(paddingInner=0.25))
    offset = alt.YOffset("source:N", sort=names)
    legend = alt.Legend(title=None, columns=4 if px > 200 else 2) if named else None
    colour = alt.Color("source:N", scale=alt.Scale(domain=names, range=[looks[name].colour for name in names]), legend=legend)
    shape = alt.Shape("source:N", scale=alt.Scale(domain=names, range=[looks[name].shape for name in names]), legend=legend)
    base = alt.Chart(inline(values))
    rule = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset, color=colour)
    points = base.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, yOffset=offset, color=colour, shape=shape)
    numbers = base.mark_text(align="left", baseline="middle", dx=8, fontSize=11)
    text = numbers.encode(x=alt.X("high:Q"), y=y, yOffset=offset, text="label:N")
    height = len(starts) * (len(names) * _ROW_PX + 6)
    return alt.layer(rule, points, text).properties(width=px, height=height)
