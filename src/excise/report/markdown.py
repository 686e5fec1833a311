"""The table as Markdown, for a README or an issue."""

from excise.report.columns import Entry, columns
from excise.report.notes import notes
from excise.stats.run import Run


def markdown(run: Run) -> str:
    """Every column; intervals in brackets beside their numbers; the notes as a list."""
    shown = columns(run)
    heads = [f"{column.title} ({column.unit})" if column.unit else column.title for column in shown]
    lines = [_line(heads), _line([":--", *["--:"] * (len(shown) - 1)])]
    lines += [_line([_beside(column.entry(row)) for column in shown]) for row in run.rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(run, shown)), ""])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _beside(entry: Entry) -> str:
    return f"{entry.value} [{entry.interval}]" if entry.interval else entry.value
