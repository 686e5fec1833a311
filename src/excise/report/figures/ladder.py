"""The action ladder: every way to an action on one logarithmic axis, and what it costs over a million long rollouts."""

from collections.abc import Sequence
from typing import Any

from excise.meter.latency_records import LatencyHeader
from excise.report.facts import Facts
from excise.report.figures.marks import INK, QUIET, Span, Values, dots, finished, shortened
from excise.report.figures.theme import SERIES, SHAPES
from excise.report.numbers import duration, interval, short
from excise.report.parts import Absent, Figure, Part, Table
from excise.stats.ladder import Rung, ladder
from excise.stats.latency import LatencyRow
from excise.stats.projection import LONG, MILLION, worker_hours

_SCALE = f"{MILLION:,} rollouts of {LONG} actions"


def rungs(facts: Facts) -> Part:
    """By dispatch, as rollouts paid it."""
    title, name = "The action ladder", "ladder"
    found = [rung for rung in ladder(facts.rows) if rung.dispatch_s.value > 0]
    if not found:
        return Absent(
            name=name, title=title, remedy="dispatch needs a reference: `excise measure --reference chroot` measures it"
        )
    first, last = found[0], found[-1]
    return Figure(
        name=name,
        title=title,
        caption=f"Dispatch: from asking for an action to its answer, beyond the action's own time; mean, logarithmic axis; "
        f"{facts.with_intervals('lines are 95 % intervals')}. Beside it the worker-hours of dispatch alone over {_SCALE}."
        + (" ~: no clock runs inside; by null actions beside each action." if any(r.estimated for r in found) else ""),
        alt=f"Dots on a logarithmic axis. The shortest way is {_path(first)} with {duration(first.dispatch_s.value)} an "
        f"action, the longest {_path(last)} with {duration(last.dispatch_s.value)}. Every number is in the table that follows.",
        table=_table(found, facts),
        draw=lambda wide: _draw(_values(found, facts), "dispatch of an action", wide=wide),
    )


def _path(rung: Rung) -> str:
    shell = "" if rung.cell.shell == "exec" else f", {rung.cell.shell}"
    return f"{rung.cell.address}{shell}"


def _values(found: Sequence[Rung], facts: Facts) -> Values:
    values: Values = []
    for rung in found:
        one, tone = rung.dispatch_s, facts.tones[rung.cell.address]
        about = "~" if rung.estimated else ""
        values.append(
            {
                "name": shortened(_path(rung)),
                "value": one.value,
                "label": f"{about}{duration(one.value)} · {short(rung.hours.value)} h",
                "colour": tone.colour,
                "shape": tone.shape,
            }
            | ({} if one.low is None or one.high is None or one.low <= 0 else {"low": one.low, "high": one.high})
        )
    return values


def _draw(values: Values, title: str, *, wide: bool) -> dict[str, Any]:
    px = 500 if wide else 300
    reach = [value.get(end, value["value"]) for value in values for end in ("low", "high")]
    longest = max(len(value["label"]) for value in values)
    span = Span(reach, label_px=longest * 6.6 + 12, width_px=px)
    return finished(dots(values, span, title, wide=wide, px=px))


def _table(found: Sequence[Rung], facts: Facts) -> Table:
    heads = ("path", "dispatch (ms/action)", "95 % interval", f"worker-hours at {_SCALE}", "95 % interval", "n")
    counts = {row.cell: row.n for row in facts.rows}
    body = tuple(
        (
            _path(rung) + (" (reference)" if rung.reference else ""),
            ("~" if rung.estimated else "") + short(rung.dispatch_s.value * 1e3),
            interval(rung.dispatch_s, 1e3) or "-",
            short(rung.hours.value),
            interval(rung.hours) or "-",
            str(counts[rung.cell]),
        )
        for rung in found
    )
    return Table(name="ladder", title="The action ladder", heads=heads, rows=body)


def latencies(header: LatencyHeader, rows: Sequence[LatencyRow]) -> Part:
    """By single actions in a live sandbox, above the floor that the kernel asks."""
    title, name = "The action ladder: single operations above the floor", "latency-ladder"
    known = [row for row in rows if row.cell.operation in ("exec", "session") and row.p50_s is not None]
    if not known:
        return Absent(name=name, title=title, remedy="`excise measure --plan bench` measures it")
    known.sort(key=lambda row: row.p50_s.value if row.p50_s else 0.0)
    floors = [row.floor_p50_s.value for row in known if row.floor_p50_s is not None]
    values: Values = [_floor(min(floors))] if floors else []
    addresses = list(dict.fromkeys(row.cell.address for row in known))
    values += [_sample(row, addresses.index(row.cell.address)) for row in known]
    return Figure(
        name=name,
        title=title,
        caption="p50 of one action in a live sandbox, from asking to its answer, with 95 % interval, logarithmic axis; the "
        f"floor is the same program spawned without a sandbox, beside each sample; {header.plan.blocks} blocks. Beside it the "
        f"worker-hours over {_SCALE}.",
        alt=f"Dots on a logarithmic axis, from {known[0].cell.address} to {known[-1].cell.address}. Every number is in the "
        "table of single operations.",
        table=_latency_table(known),
        draw=lambda wide: _draw(values, "p50 of one action", wide=wide),
    )


def path_of(row: LatencyRow) -> str:
    return f"{row.cell.address}, {row.cell.operation}" + (", in a row" if row.cell.tight else "")


def _sample(row: LatencyRow, number: int) -> dict[str, Any]:
    assert row.p50_s is not None
    hours = worker_hours(row.p50_s, LONG * MILLION).value
    ends = {} if row.p50_s.low is None else {"low": row.p50_s.low, "high": row.p50_s.high}
    return {
        "name": shortened(path_of(row)),
        "value": row.p50_s.value,
        "label": f"{duration(row.p50_s.value)} · {short(hours)} h",
        "colour": SERIES[number % len(SERIES)] if number >= 0 else INK,
        "shape": SHAPES[number % len(SHAPES)],
    } | ends


def _floor(value_s: float) -> dict[str, Any]:
    label = f"{duration(value_s)} (no sandbox)"
    return {"name": "the floor", "value": value_s, "label": label, "colour": QUIET, "shape": "stroke"}


def _latency_table(rows: Sequence[LatencyRow]) -> Table:
    heads = ("path", "p50 (ms)", "95 % interval", "floor p50 (ms)", "x floor", "95 % interval", "worker-hours", "n")
    body: list[tuple[str, ...]] = []
    for row in rows:
        assert row.p50_s is not None
        floor, times = row.floor_p50_s, row.to_floor
        body.append(
            (
                path_of(row),
                short(row.p50_s.value * 1e3),
                interval(row.p50_s, 1e3) or "-",
                "-" if floor is None else short(floor.value * 1e3),
                "-" if times is None else short(times.value),
                "-" if times is None else interval(times) or "-",
                short(worker_hours(row.p50_s, LONG * MILLION).value),
                str(row.n),
            )
        )
    return Table(name="latency-ladder", title="Single actions above the floor", heads=heads, rows=tuple(body))
