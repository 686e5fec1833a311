"""How cost grows: with a rollout's length (Figure 5, break-even) and with their number (Figure 6)."""

from collections.abc import Sequence
from typing import Any

from excise.report.facts import Facts
from excise.report.figures.decomposition import lengths
from excise.report.figures.lines import Curve, rising
from excise.report.figures.marks import HOURS, shortened
from excise.report.numbers import counted, duration, interval, short
from excise.report.parts import Absent, Figure, Part, Table
from excise.stats.estimate import Estimate
from excise.stats.projection import LONG, Scenario, project
from excise.stats.rows import Row

SCALES = (10_000, 100_000, 1_000_000)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 150, 300)


def completion(facts: Facts) -> Part:
    """Figure 5: time to the end by number of actions, as measured."""
    title, name = "Completion time by action count", "completion"
    several = lengths(facts)
    if not several:
        return Absent(name=name, title=title, remedy="`excise measure --plan fig5` measures it")
    tier_name, rows = max(several.items(), key=lambda item: len(item[1]))
    steps = sorted({row.actions for row in rows})
    return Figure(
        name=name,
        title=title,
        caption=f"Mean time of a rollout of {tier_name} with {', '.join(map(str, steps))} actions, as measured, both axes "
        f"logarithmic; {facts.with_intervals('bands are 95 % intervals')}; "
        f"{counted(row.n for row in rows)}.",
        alt="Lines that rise with the number of actions, one for each substrate. Every number is in the table that follows.",
        table=_lengths_table(rows),
        draw=lambda wide: rising(_measured(facts, rows), "actions in a rollout", "mean time of a rollout", wide=wide),
    )


def _measured(facts: Facts, rows: Sequence[Row]) -> list[Curve]:
    found: list[Curve] = []
    for address in dict.fromkeys(row.address for row in rows):
        own = sorted((row for row in rows if row.address == address and row.total_s), key=lambda row: row.actions)
        totals = [(float(row.actions), row.total_s) for row in own if row.total_s is not None]
        points = [(at, total.value) for at, total in totals]
        band = [(at, t.low, t.high) for at, t in totals if t.low is not None and t.high is not None]
        tone = facts.tones[address]
        found.append(Curve(name=shortened(address), tone=tone, points=points, band=band, marks=points))
    return found


def _lengths_table(rows: Sequence[Row]) -> Table:
    body = tuple(
        (row.address, str(row.actions), short(row.total_s.value), interval(row.total_s) or "-", str(row.n))
        for row in sorted(rows, key=lambda row: (row.address, row.actions))
        if row.total_s is not None
    )
    heads = ("substrate", "actions", "mean (s)", "95 % interval", "n")
    return Table(name="completion", title="Completion time", heads=heads, rows=body)


def scale_up(facts: Facts) -> Part:
    """Figure 6: worker-hours from ten thousand to a million."""
    title, name = "Worker-hours at scale", "worker-hours"
    rows = [row for row in facts.long if row.costs is not None]
    if not rows:
        return Absent(name=name, title=title, remedy="no trial of its workload succeeded")
    hours = {row.cell: [_hours(row, scale) for scale in SCALES] for row in rows}
    rows.sort(key=lambda row: hours[row.cell][-1].value)
    cheap, dear = rows[0], rows[-1]
    composed = (
        "composed from the measured start, action and cleanup"
        if any(r.actions != LONG for r in rows)
        else "from trials of that length"
    )
    return Figure(
        name=name,
        title=f"{title}: 10,000 to 1,000,000 rollouts of {LONG} actions",
        caption=f"Hours of one worker, {composed} of {rows[0].cell.workload}, both axes logarithmic; "
        f"{facts.with_intervals('bands are 95 % intervals')}. "
        "As if no rollout failed.",
        alt=f"Parallel rising lines. A million rollouts take {short(hours[cheap.cell][-1].value)} worker-hours on {cheap.name} "
        f"and {short(hours[dear.cell][-1].value)} on {dear.name}. Every number is in the table that follows.",
        table=_scale_table(rows, hours),
        draw=lambda wide: rising(
            _scaled(facts, rows, hours), "rollouts", "worker-hours", wide=wide, words=HOURS, x_values=list(SCALES)
        ),
    )


def _hours(row: Row, rollouts: int) -> Estimate:
    assert row.costs is not None
    return project(row.costs, Scenario(rollouts=rollouts)).hours


def _scaled(facts: Facts, rows: Sequence[Row], hours: dict[Any, list[Estimate]]) -> list[Curve]:
    found: list[Curve] = []
    for row in rows:
        known = list(zip(map(float, SCALES), hours[row.cell], strict=True))
        points = [(scale, one.value) for scale, one in known]
        band = [(scale, one.low, one.high) for scale, one in known if one.low is not None and one.high is not None]
        found.append(Curve(name=shortened(row.name), tone=facts.tones[row.address], points=points, band=band, marks=points))
    return found


def _scale_table(rows: Sequence[Row], hours: dict[Any, list[Estimate]]) -> Table:
    heads = ("substrate", *(f"{scale:,} (h)" for scale in SCALES), "95 % interval at 1,000,000", "n")
    body = tuple(
        (row.name, *(short(one.value) for one in hours[row.cell]), interval(hours[row.cell][-1]) or "-", str(row.n))
        for row in rows
    )
    return Table(name="worker-hours", title="Worker-hours", heads=heads, rows=body)


def by_length(facts: Facts) -> Part:
    """The lines that break-even lengths are where they cross."""
    name, title = "length", "Cost of a rollout by its length"
    rows = [row for row in facts.isolated if row.costs is not None]
    if len(rows) < 2:
        return Absent(
            name=name,
            title=title,
            remedy="it needs two substrates that isolate: `excise measure docker bubblewrap` measures it",
        )
    found: list[Curve] = []
    for row in rows:
        assert row.costs is not None
        line = row.costs.line
        points = [(float(length), line.at(length)) for length in LENGTHS]
        mark = [(float(row.actions), line.at(row.actions))]
        found.append(Curve(name=shortened(row.name), tone=facts.tones[row.address], points=points, marks=mark))
    return Figure(
        name=name,
        title=title,
        caption=f"Mean time of a rollout of {facts.workload} if it had so many actions: start + actions x mean action + "
        "cleanup; both axes logarithmic. The mark is the length that was measured.",
        alt="Lines that rise with length; where two of them cross, their substrates cost the same. The crossings are in the "
        "table of break-even lengths.",
        table=_length_table(rows),
        draw=lambda wide: rising(found, "actions in a rollout", "mean time of a rollout", wide=wide),
    )


def _length_table(rows: Sequence[Row]) -> Table:
    shown = (1, 10, 50, 150, 300)
    heads = ("substrate", *(f"{length} actions" if length > 1 else "1 action" for length in shown))
    body = tuple((row.name, *(duration(row.costs.line.at(n)) for n in shown)) for row in rows if row.costs is not None)
    return Table(name="length", title="Mean time of a rollout by its length", heads=heads, rows=body)
