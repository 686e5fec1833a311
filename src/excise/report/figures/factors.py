"""What a factor changes: rollouts at once, the way back to the start state, the shell, the state a rollout starts from.

A figure is there only if the run has the factor in at least two levels with all else the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from excise.meter.records import RESETS, SHELLS, STATES, Cell
from excise.report.facts import Facts
from excise.report.figures.lines import Curve, rising
from excise.report.figures.marks import Span, Values, dots, finished, shortened
from excise.report.numbers import counted, duration, interval, short
from excise.report.parts import Figure, Table
from excise.stats.estimate import Estimate
from excise.stats.rows import Row
from excise.stats.run import ratio


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A field of a cell, and the number of a row that it is drawn by."""

    field: str
    title: str
    axis: str
    caption: str
    of: Callable[[Row], Estimate | None]
    levels: tuple[Any, ...] = ()
    """In the order they are drawn; empty: they are numbers, and drawn along an axis."""


FACTORS = (
    Factor(
        field="concurrency",
        title="Rollouts at once",
        axis="mean time of a rollout",
        caption="Mean time of one rollout while so many run at once, all begun together. A flat line: there is room left; "
        "twice the time for twice the number: there is none",
        of=lambda row: row.total_s,
    ),
    Factor(
        field="reset",
        title="Ways back to the start state",
        axis="start, set-up, reset and cleanup",
        caption="What a rollout pays once, whatever its length: start, set-up and cleanup of a sandbox of its own (recreate), "
        "or bringing one that lives on back to its start state",
        of=lambda row: None if row.costs is None else row.costs.estimate(lambda line: line.fixed_s),
        levels=RESETS,
    ),
    Factor(
        field="shell",
        title="Shell modes",
        axis="mean time of an action",
        caption="Mean time of an action from asking to its answer, its work included. Exec: as the workload says; shell: by "
        "sh -c; login: by bash -lc; session: in one live shell",
        of=lambda row: None if row.costs is None else row.costs.estimate(lambda line: line.per_action_s),
        levels=SHELLS,
    ),
    Factor(
        field="state",
        title="Where a rollout starts from",
        axis="start, set-up and cleanup",
        caption="What a rollout pays once, whatever its length: start, set-up and cleanup. Warm: the image is on this host and "
        "its pages are cached; cold: the page cache is dropped before each trial; registry: the image is pulled from one on "
        "loopback; repo-warm: what set-up leads to was kept before the first trial, in no trial's time",
        of=lambda row: None if row.costs is None else row.costs.estimate(lambda line: line.fixed_s),
        levels=STATES,
    ),
)


def factors(facts: Facts) -> list[Figure]:
    """Of every factor that this run has."""
    return [_figure(facts, factor, rows) for factor in FACTORS if (rows := varied(facts.rows, factor))]


def varied(rows: Sequence[Row], factor: Factor) -> list[Row]:
    """The rows that differ from another in this factor alone, by substrate, then in the order of its levels."""
    groups: dict[Cell, list[Row]] = {}
    for row in rows:
        if factor.of(row) is not None:
            groups.setdefault(_usual(row.cell, factor), []).append(row)
    found = [row for group in groups.values() if len(group) > 1 for row in group]
    addresses = list(dict.fromkeys(row.address for row in found))
    return sorted(found, key=lambda row: (addresses.index(row.address), row.cell.workload, _place(row, factor)))


def _usual(cell: Cell, factor: Factor) -> Cell:
    return msgspec.structs.replace(cell, **{factor.field: 1 if not factor.levels else factor.levels[0]})


def _level(row: Row, factor: Factor) -> Any:
    return getattr(row.cell, factor.field)


def _place(row: Row, factor: Factor) -> int:
    level = _level(row, factor)
    return factor.levels.index(level) if factor.levels else int(level)


def _value(row: Row, factor: Factor) -> Estimate:
    found = factor.of(row)
    assert found is not None
    return found


def _figure(facts: Facts, factor: Factor, rows: Sequence[Row]) -> Figure:
    known = sorted(rows, key=lambda row: _value(row, factor).value)
    work = ", ".join(dict.fromkeys(row.cell.workload for row in rows))
    ends = facts.with_intervals(f"{'lines' if factor.levels else 'bands'} are 95 % intervals")
    return Figure(
        name=f"by-{factor.field}",
        title=factor.title,
        caption=f"{factor.caption}. {work}; logarithmic {'axes' if not factor.levels else 'axis'}; {ends}; "
        f"{counted(row.n for row in rows)}.",
        alt=f"From {duration(_value(known[0], factor).value)} ({_called(known[0], factor, rows)}) to "
        f"{duration(_value(known[-1], factor).value)} ({_called(known[-1], factor, rows)}). Every number is in the table that "
        "follows.",
        table=_table(factor, rows),
        draw=lambda wide: (_dots if factor.levels else _lines)(facts, factor, rows, wide=wide),
    )


def _called(row: Row, factor: Factor, rows: Sequence[Row]) -> str:
    """The substrate and the level, and the workload where there are several."""
    several = len({one.cell.workload for one in rows}) > 1
    return f"{row.address}, {_level(row, factor)}" + (f", {row.cell.workload}" if several else "")


def _dots(facts: Facts, factor: Factor, rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    values: Values = []
    for row in rows:
        one, tone = _value(row, factor), facts.tones[row.address]
        named = {"name": shortened(_called(row, factor, rows)), "colour": tone.colour, "shape": tone.shape}
        ends = {} if one.low is None or one.high is None or one.low <= 0 else {"low": one.low, "high": one.high}
        values.append({**named, "value": one.value, "label": duration(one.value), **ends})
    px = 500 if wide else 300
    reach = [value.get(end, value["value"]) for value in values for end in ("low", "high")]
    return finished(dots(values, Span(reach, label_px=66, width_px=px), factor.axis, wide=wide, px=px))


def _lines(facts: Facts, factor: Factor, rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    several = len({row.cell.workload for row in rows}) > 1
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.address + (f", {row.cell.workload}" if several else ""), []).append(row)
    found: list[Curve] = []
    for name, own in groups.items():
        known = [(float(_level(row, factor)), _value(row, factor)) for row in own]
        points = [(at, one.value) for at, one in known]
        band = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
        tone = facts.tones[own[0].address]
        found.append(Curve(name=shortened(name), tone=tone, points=points, band=band, marks=points))
    levels = sorted({int(_level(row, factor)) for row in rows})
    return rising(found, "rollouts at once", factor.axis, wide=wide, x_values=levels)


def _table(factor: Factor, rows: Sequence[Row]) -> Table:
    heads = (
        "substrate",
        "workload",
        factor.field,
        f"{factor.axis} (ms)",
        "95 % interval",
        "total, x the first level",
        "95 % interval",
        "done (1/s)",
        "CPU (s)",
        "n",
    )
    first: dict[Cell, Row] = {}
    body: list[tuple[str, ...]] = []
    for row in rows:
        usual, one = first.setdefault(_usual(row.cell, factor), row), _value(row, factor)
        times = ratio(row, usual) if row is not usual and row.totals_s.keys() & usual.totals_s.keys() else None
        body.append(
            (
                row.address,
                row.cell.workload,
                str(_level(row, factor)),
                short(one.value * 1e3),
                interval(one, 1e3) or "-",
                "-" if times is None else short(times.value),
                "-" if times is None else interval(times) or "-",
                "-" if row.throughput_per_s is None else short(row.throughput_per_s.value),
                "-" if row.cpu_s is None else short(row.cpu_s.value),
                str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}",
            )
        )
    return Table(name=f"by-{factor.field}", title=factor.title, heads=heads, rows=tuple(body), numbers=3)
