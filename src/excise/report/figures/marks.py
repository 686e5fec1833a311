"""What several figures share: axes of time, dots with their intervals, lines with their names at the end."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from excise.report.figures.engine import Channel, Chart, alt
from excise.report.figures.theme import LIGHT, NARROW, WIDE

LONGEST_NAME = 26
ROW_PX = 30
NARROW_ROW_PX = 46
"""On a phone a row's name stands above its mark."""
LABEL_PX = 7.0
"""About how wide a letter of a label is."""

SECONDS = (
    "datum.value < 0.000999 ? format(datum.value * 1e6, '~g') + ' µs' : "
    "datum.value < 0.999 ? format(datum.value * 1e3, '~g') + ' ms' : format(datum.value, ',~g') + ' s'"
)
HOURS = "format(datum.value, ',~g') + ' h'"

Values = list[dict[str, Any]]

_BETWEEN = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(step / 10 for step in range(10, 100)))
"""Multiples of powers of ten, the roundest first."""


def inline(values: Values) -> Channel:
    return alt.Data(values=values)


def width(wide: bool) -> int:
    return WIDE if wide else NARROW


def shortened(name: str) -> str:
    """A name that fits beside an axis; the table has it whole.

    Rows are told apart by it: of an address the options say more than what comes before them, and whose they are the least.
    """
    before, mark, options = name.partition("?")
    if mark:
        name = before + mark + re.sub(r"(^|&)[^=&]*\.", r"\1", options)
    if len(name) <= LONGEST_NAME:
        return name
    tail = (LONGEST_NAME - 1) * (2 if mark else 1) // (3 if mark else 2)
    return f"{name[: LONGEST_NAME - 1 - tail]}…{name[-tail:]}"


class Span:
    """The ends of a logarithmic axis, with room for labels that stand to the right of the largest value."""

    def __init__(self, values: Iterable[float], *, label_px: float = 0.0, width_px: float = WIDE) -> None:
        known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        self.low, high = min(known) * 0.8, max(known) * 1.25
        share = min(0.6, label_px / width_px)
        self.high = self.low * (high / self.low) ** (1 / (1 - share))

    @property
    def ticks(self) -> list[float]:
        """Powers of ten; where they are few, with numbers between them, the roundest that make three."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = [10.0**power for power in range(first, last + 1)]
        inside: list[float] = []
        for steps in _BETWEEN:
            inside = [step * power for power in powers for step in steps if self.low <= step * power <= self.high]
            if len(inside) > 2:
                break
        return [float(f"{tick:.6g}") for tick in inside]

    def scale(self) -> Channel:
        return alt.Scale(type="log", domain=[self.low, self.high], nice=False)

    def axis(self, title: str | None, words: str = SECONDS, **more: Any) -> Channel:
        return alt.Axis(values=self.ticks, labelExpr=words, title=title, labelOverlap=True, **more)


def rows_of(names: Sequence[str], *, wide: bool) -> Channel:
    """A row for each name; on a phone the name is drawn above the mark and the axis has none."""
    axis = alt.Axis(title=None, ticks=False, domain=False, grid=False, labelPadding=8) if wide else None
    return alt.Y("name:N", sort=list(names), axis=axis, scale=alt.Scale(paddingInner=0.2, paddingOuter=0.15))


def height(rows: int, *, wide: bool) -> int:
    return max(1, rows) * (ROW_PX if wide else NARROW_ROW_PX)


def dots(values: Values, span: Span, title: str, *, wide: bool, px: int, words: str = SECONDS, named: bool = True) -> Chart:
    """A dot a row on a logarithmic axis, its interval as a line with ends, its number beside it.

    Each of `values` has name, value, label, colour and shape; low and high where there is an interval. Rows without names
    stand beside a chart that has them.
    """
    names = list(dict.fromkeys(value["name"] for value in values))
    y = rows_of(names, wide=wide) if named or not wide else alt.Y("name:N", sort=names, axis=None)
    colour = alt.Color("colour:N", scale=None, legend=None)
    data = inline([{"low": value["value"], "high": value["value"], **value} for value in values])
    x = alt.X("value:Q", scale=span.scale(), axis=span.axis(title, words))
    below = 0 if wide else 8
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=42, opacity=1, yOffset=below)
        .encode(x=x, y=y, color=colour, shape=alt.Shape("shape:N", scale=None, legend=None))
    )
    numbers = (
        alt.Chart(data)
        .mark_text(align="left", baseline="middle", dx=9, yOffset=below)
        .encode(x=alt.X("high:Q"), y=y, text="label:N")
    )
    layers: list[Any] = [*_intervals(values, y, colour, below), points, numbers]
    if not wide:
        layers.append(above(names, y))
    return alt.layer(*layers).properties(width=px, height=height(len(names), wide=wide))


def _intervals(values: Values, y: Channel, colour: Channel, below: int) -> list[Chart]:
    """A line with ends for each value that has an interval; ends without one would say that it is exact."""
    data = inline([value for value in values if "low" in value])
    line = alt.Chart(data).mark_rule(strokeWidth=2, yOffset=below).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    tick = alt.Chart(data).mark_tick(thickness=2, size=11, opacity=1, yOffset=below)
    return [line, *(tick.encode(x=alt.X(f"{end}:Q"), y=y, color=colour) for end in ("low", "high"))]


def above(names: Sequence[str], y: Channel) -> Chart:
    """Each row's name over its mark."""
    return (
        alt.Chart(inline([{"name": name} for name in names]))
        .mark_text(align="left", baseline="middle", dy=-12, fontWeight="bold")
        .encode(x=alt.value(0), y=y, text="name:N")
    )


def spread(places: Mapping[str, float], low: float, high: float, pixels: float, gap_px: float = 15.0) -> dict[str, float]:
    """Where names at the ends of lines go on a logarithmic axis: near their lines, and apart from each other."""
    scale = pixels / math.log(high / low)
    wanted = sorted((math.log(value / low) * scale, name) for name, value in places.items())
    placed: list[float] = []
    for place, _ in wanted:
        placed.append(max(place, placed[-1] + gap_px) if placed else place)
    # What was pushed out at the top goes back as far as the others allow.
    ceiling = pixels
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap_px
    return {name: low * math.exp(place / scale) for place, (_, name) in zip(placed, wanted, strict=True)}


def finished(chart: Any) -> dict[str, Any]:
    """The specification, checked against the schema by altair."""
    return chart.properties(padding={"left": 4, "right": 8, "top": 4, "bottom": 4}, background="transparent").to_dict()


INK, QUIET, PAPER = LIGHT["ink"], LIGHT["quiet"], LIGHT["paper"]
