"""Open-loop load: what a rollout waits from when it was to begin, by how many arrive a second."""

from collections.abc import Sequence
from typing import Any

from excise.report.facts import Facts
from excise.report.figures.lines import Curve, rising
from excise.report.figures.marks import shortened
from excise.report.numbers import NOTHING, counted, duration, interval, short
from excise.report.parts import Absent, Figure, Part, Table
from excise.stats.estimate import Estimate
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.rows import Row

_NAME, _TITLE = "by-arrivals", "Rollouts that arrive at a rate"


def arrivals(facts: Facts) -> list[Part]:
    """Nothing where the run has no such cells."""
    rows = [row for row in facts.rows if row.cell.arrivals_per_s and row.n]
    if not rows:
        return []
    known = [row for row in rows if row.waited_p50_s is not None]
    if not known:
        remedy = f"a median needs {FEWEST_BLOCKS} blocks: `excise measure --plan load --blocks {FEWEST_BLOCKS}` measures it"
        return [Absent(name=_NAME, title=_TITLE, remedy=remedy)]
    known.sort(key=lambda row: (row.address, row.cell.workload, row.cell.arrivals_per_s))
    worst = max(known, key=lambda row: row.waited_p50_s.value if row.waited_p50_s else 0.0)
    assert worst.waited_p50_s is not None
    return [
        Figure(
            name=_NAME,
            title=_TITLE,
            caption="From when a rollout was to begin to its end, whether or not those before it had ended: whoever waits for "
            "its turn is counted. p50, and dashed p95 where there are trials enough for its interval; bands are 95 % intervals "
            f"by order statistics; both axes logarithmic; {counted(row.n for row in known)}.",
            alt=f"Lines by rate of arrival. The longest wait is {duration(worst.waited_p50_s.value)} at the median, on "
            f"{worst.address} with {worst.cell.arrivals_per_s:g} arrivals a second. Every number is in the table that follows.",
            table=_table(known),
            draw=lambda wide: _draw(facts, known, wide=wide),
        )
    ]


def _draw(facts: Facts, rows: Sequence[Row], *, wide: bool) -> dict[str, Any]:
    several = len({row.cell.workload for row in rows}) > 1
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.address + (f", {row.cell.workload}" if several else ""), []).append(row)
    found: list[Curve] = []
    for name, own in groups.items():
        for level, dashed in (("p50", False), ("p95", True)):
            known = [(row.cell.arrivals_per_s, one) for row in own if (one := _waited(row, level)) is not None]
            if known:
                points = [(at, one.value) for at, one in known]
                band = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
                tone = facts.tones[own[0].address]
                called = shortened(f"{name} {level}")
                found.append(Curve(name=called, tone=tone, points=points, band=band, marks=points, dashed=dashed))
    rates = sorted({row.cell.arrivals_per_s for row in rows})
    return rising(found, "arrivals a second", "from the intended begin to the end", wide=wide, x_values=rates)


def _waited(row: Row, level: str) -> Estimate | None:
    return row.waited_p50_s if level == "p50" else row.waited_p95_s


def _table(rows: Sequence[Row]) -> Table:
    heads = (
        *("substrate", "workload", "arrivals (1/s)", "p50 (ms)", "95 % interval", "p95 (ms)", "95 % interval"),
        *("done (1/s)", "95 % interval", "n"),
    )
    body: list[tuple[str, ...]] = []
    for row in rows:
        cells = [row.address, row.cell.workload, f"{row.cell.arrivals_per_s:g}"]
        for one, scale in ((row.waited_p50_s, 1e3), (row.waited_p95_s, 1e3), (row.throughput_per_s, 1.0)):
            cells += [NOTHING, NOTHING] if one is None else [short(one.value * scale), interval(one, scale) or NOTHING]
        body.append((*cells, str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}"))
    return Table(name=_NAME, title=_TITLE, heads=heads, rows=tuple(body), numbers=2)
