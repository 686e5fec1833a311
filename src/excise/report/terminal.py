"""The table on a terminal, and as plain text where there is none."""

import io
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from excise.report.columns import Column, fitting
from excise.report.notes import notes
from excise.stats.run import Run

PLAIN_WIDTH = 120


def show(run: Run, file: TextIO) -> None:
    """Print `run` to `file`: in colour and to its width on a terminal, 120 wide and plain elsewhere."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    _print(run, console)


def text(run: Run, width: int = PLAIN_WIDTH) -> str:
    """The same as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    _print(run, console)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _print(run: Run, console: Console) -> None:
    shown = fitting(run, console.width)
    console.print(table(run, shown))
    console.print()
    for note in notes(run, shown):
        console.print(Text(note, style="dim"))


def table(run: Run, shown: Sequence[Column]) -> Table:
    """One row a substrate: numbers on the first line, their intervals on the second."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for index, column in enumerate(shown):
        side = "left" if index == 0 else "right"
        grid.add_column(f"{column.title}\n{column.unit}", justify=side, min_width=column.width(run.rows))
    for row in run.rows:
        entries = [column.entry(row) for column in shown]
        grid.add_row(*(entry.value for entry in entries))
        if any(entry.interval for entry in entries):
            grid.add_row(*(Text(entry.interval, style="dim") for entry in entries))
    return grid
