"""What claims find as time goes on: a pool that fills, or that forgets."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from excise.meter.pool_records import PoolTrial
from excise.report.figures.engine import alt
from excise.report.figures.marks import PAPER, Values, finished, inline
from excise.report.parts import Figure, Part, Table
from excise.report.pool_words import HIT_TONES, MODE_WORDS

BINS = 12
PLACES = "places for "
_TITLE = "What claims find as time goes on"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One claim: when it was to be made, what it found, and in which of several plots it stands."""

    at_s: float
    hit: str
    row: str = ""
    column: str = ""


def over_time(name: str, claims: Sequence[Found], remark: str = "") -> list[Part]:
    """Shares in equal pieces of time; nothing where there are no claims, or all came at once."""
    longest = max((one.at_s for one in claims), default=0.0)
    if longest <= 0:
        return []
    counts = _counted(claims, longest)
    whole = Counter(one.hit for one in claims)
    told = ", ".join(f"{hit} {100 * number / len(claims):.0f} %" for hit, number in whole.most_common(3))
    return [
        Figure(
            name=name,
            title=_TITLE,
            caption=f"Of the claims that were to be made in each piece of {longest / BINS:.2g} s, the share by what they "
            "found. deps: all of it; sibling: another commit of the same repository; repo, image, base: less and less of it; "
            f"template: a snapshot; miss: nothing. {remark}n = {len(claims)} claims.",
            alt=f"Stacked bars over time. Over all of it: {told}. Every number is in the table that follows.",
            table=_table(name, claims, longest),
            draw=lambda wide: _draw(counts, wide=wide),
        )
    ]


def of_trials(trials: Sequence[PoolTrial]) -> list[Part]:
    """Of a mix: the two pools beside each other for each size, at the middle exponent."""
    mixed = [t for t in trials if not t.warmup and t.cell.memory_percent is not None and t.cell.zipf is not None]
    if not mixed:
        return []
    exponents = sorted({t.cell.zipf for t in mixed if t.cell.zipf is not None})
    middle = exponents[len(exponents) // 2]
    claims = [
        Found(
            at_s=claim.intended_ns / 1e9,
            hit="failed" if claim.failure is not None else claim.hit or "created",
            row=MODE_WORDS[trial.cell.mode],
            column=f"{PLACES}{trial.cell.memory_percent} %",
        )
        for trial in mixed
        if trial.cell.zipf == middle
        for claim in trial.claims
    ]
    return over_time("hits-over-time", claims, f"The Zipf exponent is {middle:g}. ")


def _piece(at_s: float, longest: float) -> int:
    return min(BINS - 1, int(BINS * at_s / longest))


def _counted(claims: Sequence[Found], longest: float) -> Values:
    """A bar's pieces, one on the other, for each plot and each piece of time."""
    bars: dict[tuple[str, str, int], Counter[str]] = {}
    for one in claims:
        bars.setdefault((one.row, one.column, _piece(one.at_s, longest)), Counter())[one.hit] += 1
    values: Values = []
    for (row, column, piece), counts in bars.items():
        at, whole = 0.0, counts.total()
        for hit in (*HIT_TONES, *sorted(set(counts) - set(HIT_TONES))):
            if counts[hit]:
                share = counts[hit] / whole
                begin, end = longest * piece / BINS, longest * (piece + 1) / BINS
                values.append(
                    {"row": row, "column": column, "hit": hit, "begin": begin, "end": end, "from": at, "to": at + share}
                )
                at += share
    return values


def _draw(values: Values, *, wide: bool) -> dict[str, Any]:
    hits = [hit for hit in HIT_TONES if any(value["hit"] == hit for value in values)]
    others = sorted({value["hit"] for value in values} - set(HIT_TONES))
    colours = [*(HIT_TONES[hit] for hit in hits), *(HIT_TONES["created"] for _ in others)]
    rows, columns = (list(dict.fromkeys(value[axis] for value in values)) for axis in ("row", "column"))
    px = round((600 if wide else 240) / len(columns)) - 12
    legend = alt.Legend(title=None, columns=8 if wide else 4)
    bars = (
        alt.Chart()
        .mark_bar(stroke=PAPER, strokeWidth=0.5)
        .encode(
            x=alt.X("begin:Q", axis=alt.Axis(title="when it was to be made (s)" if wide else "seconds", tickCount=4)),
            x2="end:Q",
            y=alt.Y("from:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", title=None, values=[0, 0.5, 1])),
            y2="to:Q",
            color=alt.Color("hit:N", scale=alt.Scale(domain=[*hits, *others], range=colours), legend=legend),
        )
        .properties(width=px, height=110 if len(rows) > 1 else 160)
    )
    if rows == [""] and columns == [""]:
        return finished(bars.properties(data=inline(values)))
    if not wide:  # There is no room for the whole words above each plot.
        values = [{**value, "column": value["column"].removeprefix(PLACES)} for value in values]
        columns = [column.removeprefix(PLACES) for column in columns]
    across = alt.Column("column:N", sort=columns, title=None if wide else PLACES.strip())
    up = alt.Row("row:N", sort=rows, title=None)
    return finished(bars.facet(data=inline(values), column=across, row=up).properties(spacing=12))


def _table(name: str, claims: Sequence[Found], longest: float) -> Table:
    plots = list(dict.fromkeys((one.row, one.column) for one in claims))
    hits = [
        hit for hit in (*HIT_TONES, *sorted({one.hit for one in claims} - set(HIT_TONES))) if any(c.hit == hit for c in claims)
    ]
    body: list[tuple[str, ...]] = []
    for row, column in plots:
        own = [one for one in claims if (one.row, one.column) == (row, column)]
        for piece in range(BINS):
            counts = Counter(one.hit for one in own if _piece(one.at_s, longest) == piece)
            words = (row, column) if plots != [("", "")] else ()
            if counts:
                body.append((*words, f"{longest * piece / BINS:.2f}", *(str(counts[hit]) for hit in hits), str(counts.total())))
    words = ("asked", "memory") if plots != [("", "")] else ()
    heads = (*words, "from (s)", *hits, "n")
    return Table(name=name, title=_TITLE, heads=heads, rows=tuple(body), numbers=len(words))
