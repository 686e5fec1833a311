"""Colours by what they mean, for light and dark, and the look that all figures share.

A figure is drawn once, in the light colours. Style sheets then find each of them by its value and put the reader's own in its
place, so one SVG follows the page, the print and the dark.
"""

from collections.abc import Mapping
from typing import Any

WIDE, NARROW = 640, 250
"""Pixels of a plot without its labels, on a page and on a phone."""

FONT = "Liberation Sans, Arial, Helvetica, Excise Narrow, sans-serif"
_NARROW = "".join(
    f'@font-face{{font-family:"Excise Narrow";font-weight:{weight};src:local("{name}");size-adjust:88%}}'
    for weight, name in (("normal", "DejaVu Sans"), ("bold", "DejaVu Sans Bold"))
)
"""Drawings are laid out in the widths of Arial. Where a reader has none, what Linux has instead is made as narrow."""

LIGHT: Mapping[str, str] = {
    "paper": "#fffffe",
    "ink": "#1b1f24",
    "quiet": "#59636e",
    "grid": "#e4e8ec",
    "start": "#0072b2",
    "setup": "#5f4bb7",
    "reset": "#56b4e9",
    "dispatch": "#e69f00",
    "slowdown": "#cc79a7",
    "cleanup": "#009e73",
    "unattributed": "#c3cad1",
    "work": "#8a96a3",
    "on-dark": "#fffffd",
    "on-light": "#14181c",
    "series-1": "#0072b3",
    "series-2": "#c75300",
    "series-3": "#00855f",
    "series-4": "#b0508a",
    "series-5": "#2b8cbe",
    "series-6": "#8a6d00",
    "series-7": "#5f4bb6",
    "series-8": "#4d4d4d",
}
DARK: Mapping[str, str] = {
    "paper": "#12161b",
    "ink": "#e6eaee",
    "quiet": "#a0abb6",
    "grid": "#2b323a",
    "start": "#4fa9e2",
    "setup": "#a99bf0",
    "reset": "#8fd0f5",
    "dispatch": "#f2b134",
    "slowdown": "#e5a0c6",
    "cleanup": "#36c79d",
    "unattributed": "#515b66",
    "work": "#8b97a4",
    "on-dark": "#14181d",
    "on-light": "#14181c",
    "series-1": "#58b0ea",
    "series-2": "#ff8f4a",
    "series-3": "#3fcf9f",
    "series-4": "#ec94c8",
    "series-5": "#86d3f7",
    "series-6": "#e3c34d",
    "series-7": "#b3a4ff",
    "series-8": "#bfc6cd",
}

SERIES = tuple(LIGHT[f"series-{number}"] for number in range(1, 9))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
"""A second sign beside the colour."""


def style_sheet(scope: str = "") -> str:
    """Rules that put `var(--NAME)` in place of each light colour, for fills, strokes and text."""
    rules = (
        f'{scope}[{kind}="{value}"]{{{kind}:var(--{name})}}' for name, value in LIGHT.items() for kind in ("fill", "stroke")
    )
    return f"{_NARROW}{scope}text{{font-family:{FONT}}}" + "".join(rules)


def variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def configuration() -> dict[str, Any]:
    """Axes, grid and text of every figure."""
    ink, quiet, grid = LIGHT["ink"], LIGHT["quiet"], LIGHT["grid"]
    return {
        "aria": False,
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": quiet,
            "titleColor": quiet,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": grid,
            "domainColor": grid,
            "tickColor": grid,
            "labelLimit": 400,
        },
        "axisY": {"labelColor": ink},
        "text": {"color": ink, "fontSize": 12},
        "legend": {
            "labelColor": ink,
            "titleColor": quiet,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "orient": "top",
            "symbolType": "square",
            "symbolStrokeWidth": 0,
            "columnPadding": 16,
            "labelLimit": 400,
        },
        "header": {"labelColor": ink, "titleColor": quiet, "labelFontSize": 12, "labelFontWeight": "bold", "labelLimit": 400},
    }
