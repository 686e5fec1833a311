"""Tables on a terminal: columns as wide as what is in them."""

import sys
from collections.abc import Sequence

from excise.cli.sentences import plain

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def duration(seconds: float | None) -> str:
    """In the largest unit that is not above it."""
    if seconds is None:
        return "-"
    size, unit = next((pair for pair in _UNITS if abs(seconds) >= pair[0]), _UNITS[-1])
    return f"{seconds / size:.0f}{unit}"


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """The first is the head."""
    # Labels and names are whatever their owner says: nothing of it reaches the terminal as a command.
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
