"""A mix of tasks: no pool, exact matches and closest states in every cell, with core-seconds beside the time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from excise.meter.pool_records import PoolCell, PoolTrial
from excise.report.figures.engine import alt
from excise.report.figures.marks import SECONDS, Span, Values, finished, inline
from excise.report.numbers import counted, interval, short
from excise.report.parts import Figure, Part, Table
from excise.report.pool_words import MODE_TONES, count, found, mode_of, pair
from excise.stats.estimate import Estimate
from excise.stats.pools import PoolRow, cpu_ratio, ratio

_TITLE = "A mix of tasks in every cell"
Compare = Callable[[Sequence[PoolTrial], PoolCell, PoolCell], Estimate | None]
Place = tuple[float, int]
"""A cell of the nine: a Zipf exponent, and for how many percent of the tasks there is memory."""


def mixture(rows: Sequence[PoolRow], trials: Sequence[PoolTrial]) -> list[Part]:
    """One for each substrate that was asked for a mix; nothing where none was."""
    sources = dict.fromkeys(
        row.cell.source for row in rows if row.cell.memory_percent is not None and row.cell.zipf is not None
    )
    return [_figure(source, [row for row in rows if row.cell.source == source], trials) for source in sources]


def places(rows: Sequence[PoolRow]) -> dict[Place, list[PoolRow]]:
    """The rows of each cell. Who has no pool has no memory for one: it stands in all cells of its exponent."""
    known = [row for row in rows if row.cell.zipf is not None]
    percents = sorted({row.cell.memory_percent for row in known if row.cell.memory_percent is not None})
    exponents = sorted({row.cell.zipf for row in known if row.cell.zipf is not None})
    return {
        (zipf, percent): [row for row in known if row.cell.zipf == zipf and row.cell.memory_percent in (percent, None)]
        for zipf in exponents
        for percent in percents
    }


def against_exact(rows: Sequence[PoolRow], trials: Sequence[PoolTrial], compare: Compare = ratio) -> dict[Place, Estimate]:
    """In each cell, how many times as long as an exact match's a closest state's claims take in the mean; or their CPU."""
    found: dict[Place, Estimate] = {}
    for place, own in places(rows).items():
        cells: Mapping[str, PoolCell] = {row.cell.mode: row.cell for row in own}
        if "exact" in cells and "closest" in cells:
            one = compare(trials, cells["closest"], cells["exact"])
            if one is not None:
                found[place] = one
    return found


def _figure(source: str, rows: Sequence[PoolRow], trials: Sequence[PoolTrial]) -> Figure:
    name = f"mixed-{''.join(one if one.isalnum() else '-' for one in source)}"
    cells, ratios, spent = places(rows), against_exact(rows, trials), against_exact(rows, trials, cpu_ratio)
    better = sum(one.high is not None and one.high < 1 for one in ratios.values())
    worse = sum(one.low is not None and one.low > 1 for one in ratios.values())
    return Figure(
        name=name,
        title=f"{_TITLE}: {source}",
        caption="Across: mean time of a claim from when it was to be made to the task's start state, logarithmic. Up: "
        "core-seconds of the whole host for each claim, with what the pool did by itself meanwhile. Lower and further left is "
        "better; lines are 95 % intervals over blocks. Columns: the part of all tasks that a pool has places for; rows: how "
        "unevenly tasks are asked for. In each cell the closest state's time divided by the exact match's. Who has no pool "
        f"stands in all columns. {counted(row.n for own in cells.values() for row in own)}.",
        alt=f"{len(cells)} small plots. The closest state is faster than the exact match beyond its interval in {better} of "
        f"{len(ratios)}, slower in {worse}. Every number is in the table that follows.",
        table=_table(name, cells, ratios, spent),
        draw=lambda wide: _draw(cells, ratios, wide=wide),
    )


def _draw(cells: Mapping[Place, Sequence[PoolRow]], ratios: Mapping[Place, Estimate], *, wide: bool) -> dict[str, Any]:
    values: Values = [_value(place, row, ratios.get(place)) for place, own in cells.items() for row in own if _known(row)]
    modes = [mode for mode in MODE_TONES if any(value["mode"] == mode for value in values)]
    looks = [MODE_TONES[mode] for mode in modes]
    px = 175 if wide else 82
    span = Span([value[end] for value in values for end in ("low", "high")])
    most = max((value["cpu_high"] for value in values), default=1.0)
    title = "mean time of a claim" if wide else "time"
    axis = alt.Axis(values=span.ticks, labelExpr=SECONDS, title=title, labelOverlap="greedy", labelSeparation=4)
    x = alt.X("value:Q", scale=span.scale(), axis=axis)
    scale = alt.Scale(domain=[0, most * 1.3])
    y = alt.Y("cpu:Q", scale=scale, axis=alt.Axis(title="core-seconds a claim" if wide else "core-s", tickCount=4))
    legend = alt.Legend(title=None, columns=4 if wide else 2)
    colour = alt.Color("mode:N", scale=alt.Scale(domain=modes, range=[one.colour for one in looks]), legend=legend)
    shape = alt.Shape("mode:N", scale=alt.Scale(domain=modes, range=[one.shape for one in looks]), legend=legend)
    base = alt.Chart()
    across = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q", y=alt.Y("cpu:Q"), color=colour)
    upward = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("value:Q"), y=alt.Y("cpu_low:Q"), y2="cpu_high:Q", color=colour)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    note = base.mark_text(align="left", baseline="top", fontSize=11)
    notes = note.encode(x=alt.value(4), y=alt.value(3), text="note:N" if wide else "short_note:N")
    plot = alt.layer(across, upward, points, notes).properties(width=px, height=120 if wide else 90)
    memory = "memory" if wide else "percent"
    order = {axis: list(dict.fromkeys(value[axis] for value in values)) for axis in ("zipf", memory)}
    return finished(
        plot.facet(
            data=inline(values),
            row=alt.Row("zipf:N", sort=order["zipf"], title=None),
            column=alt.Column(f"{memory}:N", sort=order[memory], title=None if wide else "places for"),
        ).properties(spacing=12 if wide else 8)
    )


def _known(row: PoolRow) -> bool:
    return row.mean_s is not None and row.cpu_s is not None


def _value(place: Place, row: PoolRow, against: Estimate | None) -> dict[str, Any]:
    zipf, percent = place
    assert row.mean_s is not None
    assert row.cpu_s is not None
    note = short_note = ""
    if row.cell.mode == "closest" and against is not None:
        short_note = f"{short(against.value)} x"
        note = f"{short_note} exact" + (f" [{interval(against)}]" if interval(against) else "")
    return {
        "zipf": f"Zipf {zipf:g}",
        "memory": f"places for {percent} %",
        "percent": f"{percent} %",
        "mode": mode_of(row.cell),
        **_ends("", row.mean_s),
        "value": row.mean_s.value,
        **_ends("cpu_", row.cpu_s),
        "cpu": row.cpu_s.value,
        "note": note,
        "short_note": short_note,
    }


def _ends(prefix: str, one: Estimate) -> dict[str, float]:
    low, high = (one.value if end is None else end for end in (one.low, one.high))
    return {f"{prefix}low": low, f"{prefix}high": high}


def _table(
    name: str, cells: Mapping[Place, Sequence[PoolRow]], ratios: Mapping[Place, Estimate], spent: Mapping[Place, Estimate]
) -> Table:
    heads = (
        *("Zipf", "places for (%)", "asked", "mean (ms)", "95 % interval", "p50 (ms)", "p95 (ms)", "core-s a claim"),
        *("95 % interval", "core-s ahead", "time x exact", "95 % interval", "core-s x exact", "95 % interval", "found", "n"),
    )
    body: list[tuple[str, ...]] = []
    for (zipf, percent), own in cells.items():
        for row in own:
            against = [one.get((zipf, percent)) if row.cell.mode == "closest" else None for one in (ratios, spent)]
            body.append(
                (
                    *(f"{zipf:g}", str(percent), mode_of(row.cell), *pair(row.mean_s, 1e3)),
                    *(pair(row.p50_s, 1e3)[0], pair(row.p95_s, 1e3)[0], *pair(row.cpu_s), pair(row.ahead_cpu_s)[0]),
                    *(cell for one in against for cell in pair(one)),
                    *(found(row), count(row)),
                )
            )
    return Table(name=name, title=_TITLE, heads=heads, rows=tuple(body), numbers=3)
