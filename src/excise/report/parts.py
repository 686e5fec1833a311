"""What a report is made of: tables, figures with the numbers they show, and the figures that nothing was measured for."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Text in rows and columns; the page, Markdown and CSV only lay it out."""

    name: str
    """Of its files."""
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 1
    """From this column on they are numbers, and stand to the right."""

    def markdown(self) -> str:
        """As GitHub lays it out; a bar or an angle bracket in a cell stays text."""
        rule = [":--" if index < self.numbers else "--:" for index in range(len(self.heads))]
        lines = [list(map(_plain, self.heads)), rule, *(list(map(_plain, row)) for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows((self.heads, *self.rows))
        return out.getvalue()


def _plain(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture in two widths, and all that it shows as a table."""

    name: str
    """Of its files, and of its place in the page."""
    title: str
    caption: str
    """How to read it, with units, n and what the intervals are."""
    alt: str
    """What somebody who does not see it should know: the finding."""
    table: Table
    draw: Callable[[bool], dict[str, Any]]
    """The Vega-Lite specification; True: for a wide page, False: for a phone."""


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A figure whose cells were not measured, and what measures them."""

    name: str
    title: str
    remedy: str


Part = Figure | Absent
