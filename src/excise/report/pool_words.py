"""What rows of a run of pools are called, and the colours they keep through all figures."""

from collections.abc import Mapping, Sequence

from excise.meter.pool_records import Mode, PoolCell
from excise.report.facts import Tone
from excise.report.figures.theme import LIGHT, SERIES, SHAPES
from excise.report.numbers import NOTHING, duration, interval, short
from excise.report.parts import Table
from excise.stats.estimate import Estimate
from excise.stats.pools import PoolRow

MODE_WORDS: Mapping[Mode, str] = {"none": "no pool", "exact": "exact match", "closest": "closest state"}
MODE_TONES: Mapping[str, Tone] = {
    "no pool": Tone(LIGHT["series-8"], "diamond"),
    "no pool, steps kept": Tone(LIGHT["series-3"], "triangle-up"),
    "exact match": Tone(LIGHT["series-2"], "square"),
    "closest state": Tone(LIGHT["series-1"], "circle"),
}
_STATES = {
    "cold": "no pool, nothing cached",
    "warm": "no pool, image here",
    "repo-warm": "no pool, clone kept",
    "deps-warm": "no pool, all steps kept",
}
_DEPTHS = {
    "base": "idle: nothing of it",
    "image": "idle: image's step",
    "repo": "idle: clone",
    "sibling": "idle: sibling commit",
    "deps": "idle: all of it",
    "": "idle: whatever was left",
}
STARTS = (*_STATES.values(), *_DEPTHS.values())
"""From nothing to everything."""

HIT_TONES: Mapping[str, str] = {
    "deps": LIGHT["series-1"],
    "sibling": LIGHT["series-5"],
    "repo": LIGHT["series-3"],
    "image": LIGHT["series-6"],
    "base": LIGHT["work"],
    "template": LIGHT["series-7"],
    "miss": LIGHT["series-2"],
    "created": LIGHT["series-8"],
    "failed": LIGHT["series-4"],
}
"""In the order in which they are stacked."""


def mode_of(cell: PoolCell) -> str:
    """Who is asked, in words."""
    return "no pool, steps kept" if cell.mode == "none" and cell.kept else MODE_WORDS[cell.mode]


def start_of(cell: PoolCell) -> str:
    """What there is before the first claim, in words."""
    return _STATES.get(cell.state, cell.state) if cell.mode == "none" else _DEPTHS[cell.depth]


def tones(rows: Sequence[PoolRow]) -> dict[str, Tone]:
    """By source, in the order of the plan."""
    sources = dict.fromkeys(row.cell.source for row in rows)
    return {source: Tone(SERIES[n % len(SERIES)], SHAPES[n % len(SHAPES)]) for n, source in enumerate(sources)}


def every_row(rows: Sequence[PoolRow]) -> Table:
    """All cells with all numbers."""
    heads = (
        *("substrate", "asked", "before", "claims at once", "a second", "Zipf", "places"),
        *("p50 (ms)", "95 % interval", "p95 (ms)", "95 % interval", "mean (ms)", "95 % interval", "x floor", "95 % interval"),
        *("core-s a claim", "95 % interval", "core-s ahead", "found", "n"),
    )
    return Table(name="claims", title="Every row", heads=heads, rows=tuple(map(_entries, rows)), numbers=3)


def _entries(row: PoolRow) -> tuple[str, ...]:
    cell = row.cell
    return (
        *(
            cell.source,
            mode_of(cell),
            start_of(cell),
            str(cell.claims),
            f"{cell.arrivals_per_s:g}" if cell.arrivals_per_s else "-",
        ),
        NOTHING if cell.zipf is None else f"{cell.zipf:g}",
        NOTHING if cell.places is None else str(cell.places),
        *pair(row.p50_s, 1e3),
        *pair(row.p95_s, 1e3),
        *pair(row.mean_s, 1e3),
        *pair(row.to_floor),
        *pair(row.cpu_s),
        NOTHING if row.ahead_cpu_s is None else short(row.ahead_cpu_s.value),
        found(row),
        count(row),
    )


def found(row: PoolRow) -> str:
    """`deps 30, miss 2`."""
    return ", ".join(f"{hit} {number}" for hit, number in row.hits if hit) or NOTHING


def count(row: PoolRow) -> str:
    return str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}"


def pair(one: Estimate | None, scale: float = 1.0) -> tuple[str, str]:
    """A number and its interval, as two cells of a table."""
    return (NOTHING, NOTHING) if one is None else (short(one.value * scale), interval(one, scale) or NOTHING)


def least_and_most(rows: Sequence[PoolRow]) -> str:
    """The least and the most that a claim takes, in one sentence."""
    known = sorted(((row, row.mean_s) for row in rows if row.mean_s is not None), key=lambda pair: pair[1].value)
    if not known:
        return "No claim succeeded, so there is nothing to tell but why."
    (best, least), (worst, most) = known[0], known[-1]
    told = f"A sandbox at its start state takes {duration(most.value)} on {worst.cell.source} ({_short(worst)})"
    if best is worst:
        return f"{told}."
    return f"{told} and {duration(least.value)} on {best.cell.source} ({_short(best)})."


def _short(row: PoolRow) -> str:
    plain = row.cell.depth or (row.cell.mode == "none" and not row.cell.kept)
    words = start_of(row.cell) if plain else mode_of(row.cell)
    at_once = f", {row.cell.claims} at once" if row.cell.claims > 1 and not row.cell.arrivals_per_s else ""
    return words + at_once
