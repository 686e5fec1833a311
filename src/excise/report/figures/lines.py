"""Curves with bands and with their names beside them: nobody has to look a colour up."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from excise.report.facts import Tone
from excise.report.figures.engine import Channel, Chart, alt
from excise.report.figures.marks import LABEL_PX, PAPER, Span, Values, finished, inline, spread, width

HEIGHT_PX = 280


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A named line."""

    name: str
    tone: Tone
    points: list[tuple[float, float]]
    band: list[tuple[float, float, float]] = []
    """x, low and high of its 95 % interval."""
    marks: list[tuple[float, float]] = []
    """Points that were measured, on a line that is composed between them."""
    dashed: bool = False


def curves(
    lines: Sequence[Curve],
    x: Channel,
    y: Channel,
    *,
    wide: bool,
    step: bool = False,
    label_at: Mapping[str, tuple[float, float]],
    room_px: int = 0,
) -> Chart:
    """All of them in one plot. `label_at`: where each name begins; `room_px`: taken off the plot for names beside it."""
    colour = alt.Color("colour:N", scale=None, legend=None)
    points: Values = [
        {"name": line.name, "colour": line.tone.colour, "x": at, "y": value, "order": order, "dash": str(line.dashed)}
        for line in lines
        for order, (at, value) in enumerate(line.points)
    ]
    layers: list[Any] = [*_bands(lines)]
    layers.append(
        alt.Chart(inline(points))
        .mark_line(strokeWidth=2, interpolate="step-after" if step else "linear")
        .encode(x=x, y=y, color=colour, detail="name:N", order="order:Q", strokeDash=_dashes())
    )
    marks: Values = [
        {"colour": line.tone.colour, "shape": line.tone.shape, "x": at, "y": value}
        for line in lines
        for at, value in line.marks
    ]
    if marks:
        shape = alt.Shape("shape:N", scale=None, legend=None)
        points_chart = alt.Chart(inline(marks)).mark_point(filled=True, size=60, opacity=1)
        layers.append(points_chart.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), color=colour, shape=shape))
    layers += _names(lines, label_at)
    return alt.layer(*layers).properties(width=width(wide) - room_px, height=HEIGHT_PX)


def _dashes() -> Channel:
    scale = alt.Scale(domain=["False", "True"], range=[[1, 0], [5, 4]])
    return alt.StrokeDash("dash:N", scale=scale, legend=None)


def _bands(lines: Sequence[Curve]) -> list[Chart]:
    values: Values = [
        {"name": line.name, "colour": line.tone.colour, "x": at, "low": low, "high": high}
        for line in lines
        for at, low, high in line.band
    ]
    if not values:
        return []
    area = alt.Chart(inline(values)).mark_area(opacity=0.22)
    colour = alt.Color("colour:N", scale=None, legend=None)
    return [area.encode(x=alt.X("x:Q"), y=alt.Y("low:Q"), y2="high:Q", color=colour, detail="name:N")]


def _names(lines: Sequence[Curve], label_at: Mapping[str, tuple[float, float]]) -> list[Chart]:
    """Each in its line's colour, with a rim of paper so that it can be read over other lines."""
    values: Values = [
        {"name": line.name, "colour": line.tone.colour, "x": label_at[line.name][0], "y": label_at[line.name][1]}
        for line in lines
        if line.name in label_at
    ]
    common: dict[str, Any] = {"align": "left", "baseline": "middle", "dx": 7, "fontSize": 12, "fontWeight": "bold"}
    rim = alt.Chart(inline(values)).mark_text(**common, stroke=PAPER, strokeWidth=4, color=PAPER)
    text = alt.Chart(inline(values)).mark_text(**common)
    where = {"x": alt.X("x:Q"), "y": alt.Y("y:Q"), "text": alt.Text("name:N")}
    return [rim.encode(**where), text.encode(**where, color=alt.Color("colour:N", scale=None, legend=None))]


def rising(
    lines: Sequence[Curve],
    x_title: str,
    y_title: str,
    *,
    wide: bool,
    words: str | None = None,
    x_values: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The finished drawing of curves that rise, both axes logarithmic, each with its name at its end."""
    room = round(max(len(line.name) for line in lines) * LABEL_PX) + 10
    px = width(wide) - (room if wide else 0)
    xs = [x for line in lines for x, _ in line.points]
    values = [v for line in lines for _, v in line.points] + [v for line in lines for _, *ends in line.band for v in ends]
    # On a phone names have no room beside the plot: they stand inside it, at the right.
    across = Span(xs, label_px=8 if wide else room, width_px=px)
    up = Span(values)
    axis = alt.Axis(values=list(x_values or across.ticks), title=x_title, format=",~g", labelOverlap=True)
    x = alt.X("x:Q", scale=across.scale(), axis=axis)
    y = alt.Y("y:Q", scale=up.scale(), axis=up.axis(y_title, words) if words else up.axis(y_title))
    ends = {line.name: line.points[-1][1] for line in lines}
    heights = spread(ends, up.low, up.high, HEIGHT_PX)
    label_at = {name: (max(xs), at) for name, at in heights.items()}
    return finished(curves(lines, x, y, wide=wide, label_at=label_at, room_px=room if wide else 0))
