"""A burst: what claims wait that are all to begin at once, by their number."""

from collections.abc import Sequence
from typing import Any

from excise.report.facts import Tone
from excise.report.figures.lines import Curve, rising
from excise.report.figures.marks import shortened
from excise.report.figures.theme import SERIES, SHAPES
from excise.report.numbers import NOTHING, counted, duration
from excise.report.parts import Absent, Figure, Part, Table
from excise.report.pool_words import count, found, mode_of, pair
from excise.stats.pools import PoolRow

_NAME, _TITLE = "burst", "Claims that all come at once"


def burst(rows: Sequence[PoolRow]) -> list[Part]:
    """Nothing where the run has no bursts of several sizes."""
    own = [row for row in rows if row.cell.zipf is None and not row.cell.arrivals_per_s]
    if len({row.cell.claims for row in own}) < 2:
        return []
    known = [row for row in own if row.p50_s is not None]
    if not known:
        return [Absent(name=_NAME, title=_TITLE, remedy="a median needs 6 blocks: `excise measure --plan burst --blocks 6`")]
    known.sort(key=lambda row: (row.cell.source, row.cell.mode, row.cell.claims))
    worst = max(known, key=lambda row: row.p50_s.value if row.p50_s else 0.0)
    assert worst.p50_s is not None
    return [
        Figure(
            name=_NAME,
            title=_TITLE,
            caption="From when all were to begin to a sandbox at the start state: p50, and dashed p95 where there are claims "
            "enough for its interval; bands are 95 % intervals; both axes logarithmic. A pool makes those beyond its places "
            f"wait for one. {counted(row.n for row in known)}.",
            alt=f"Lines by the number of claims. The longest wait is {duration(worst.p50_s.value)} at the median, of "
            f"{worst.cell.claims} claims on {_line(worst)}. Every number is in the table that follows.",
            table=_table(known),
            draw=lambda wide: _draw(known, wide=wide),
        )
    ]


def _line(row: PoolRow) -> str:
    return f"{row.cell.source}, {'no pool' if row.cell.mode == 'none' else 'pool'}"


def _draw(rows: Sequence[PoolRow], *, wide: bool) -> dict[str, Any]:
    lines: list[Curve] = []
    for number, name in enumerate(dict.fromkeys(map(_line, rows))):
        tone = Tone(SERIES[number % len(SERIES)], SHAPES[number % len(SHAPES)])
        own = [row for row in rows if _line(row) == name]
        for level, dashed in (("p50", False), ("p95", True)):
            picked = [(row.cell.claims, row.p95_s if dashed else row.p50_s) for row in own]
            known = [(float(claims), one) for claims, one in picked if one is not None]
            if known:
                points = [(at, one.value) for at, one in known]
                band = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
                called = shortened(f"{name} {level}")
                lines.append(Curve(name=called, tone=tone, points=points, band=band, marks=points, dashed=dashed))
    sizes = sorted({float(row.cell.claims) for row in rows})
    return rising(lines, "claims at once", "from the intended begin to the start state", wide=wide, x_values=sizes)


def _table(rows: Sequence[PoolRow]) -> Table:
    heads = (
        *("substrate", "asked", "places", "claims at once", "p50 (ms)", "95 % interval", "p95 (ms)", "95 % interval"),
        *("p50 x floor", "95 % interval", "core-s a claim", "95 % interval", "core-s ahead", "found", "n"),
    )
    body: list[tuple[str, ...]] = []
    for row in rows:
        ahead = pair(row.ahead_cpu_s)[0]
        times = (*pair(row.p50_s, 1e3), *pair(row.p95_s, 1e3), *pair(row.to_floor), *pair(row.cpu_s))
        places = NOTHING if row.cell.places is None else str(row.cell.places)
        body.append((row.cell.source, mode_of(row.cell), places, str(row.cell.claims), *times, ahead, found(row), count(row)))
    return Table(name=_NAME, title=_TITLE, heads=heads, rows=tuple(body), numbers=2)
