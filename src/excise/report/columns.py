"""Which columns there are and what each says of a row; terminal and Markdown only lay them out."""

import string
from collections.abc import Callable, Iterable

import msgspec

from excise.address import parse
from excise.report.numbers import NOTHING, interval, percent, short
from excise.stats.estimate import Estimate
from excise.stats.quantile import fewest
from excise.stats.rows import Row
from excise.stats.run import Run

LONGEST_NAME = 12
HOURS = "worker-h"
CPU = "CPU"


class Entry(msgspec.Struct, frozen=True):
    """A table's cell: the number, and below or beside it how far it can be trusted."""

    value: str
    interval: str = ""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A heading, its unit, and what it says of a row."""

    title: str
    unit: str = ""
    meaning: str = ""
    """The heading in words, for the sentence below the table; once for columns of one title."""
    entry: Callable[[Row], Entry]
    spare: int = 0
    """Where there is little room those with the highest go first; those with 0 stay."""

    def width(self, rows: Iterable[Row]) -> int:
        entries = [self.entry(row) for row in rows]
        return max(map(len, (self.title, self.unit, *(text for e in entries for text in (e.value, e.interval)))))


def columns(run: Run) -> list[Column]:
    """Every column there is for `run`."""
    few, fewer = f"n<{fewest(0.95)}", f"n<{fewest(0.5)}"
    labels = dict(zip([row.cell for row in run.rows], names(run), strict=True))
    length = next((row.actions for row in run.rows if row.actions), 0)
    return [
        Column(title="substrate", entry=lambda row: Entry(labels[row.cell], "reference" if row.reference else "")),
        Column(title="start", unit="ms", entry=lambda row: _ms(row.start_s), meaning="until a first command has answered"),
        Column(
            title="dispatch",
            unit="ms/action",
            entry=lambda row: _ms(row.dispatch_s, estimated=row.estimated),
            meaning="to the action and back, beyond its time inside",
        ),
        Column(
            title="slowdown",
            unit="ms/action",
            entry=_slowdown,
            spare=1,
            meaning="its time inside beyond work (below zero: it was faster than the reference)",
        ),
        Column(title="cleanup", unit="ms", entry=lambda row: _ms(row.cleanup_s), spare=2, meaning="until nothing is left"),
        Column(
            title="total",
            unit="ms, mean",
            entry=lambda row: _ms(row.total_s),
            meaning=f"a rollout, start + {length} x (dispatch + slowdown + work) + cleanup",
        ),
        Column(title="total", unit="ms, p50", entry=lambda row: _ms(row.total_p50_s, _small(row, fewer)), spare=4),
        Column(title="total", unit="ms, p95", entry=lambda row: _ms(row.total_p95_s, _small(row, few)), spare=5),
        Column(title="tax rate", unit="%", entry=_tax_rate, meaning="the share of the total that is not work"),
        Column(
            title=HOURS,
            unit="per 1M",
            entry=_worker_hours,
            spare=3,
            meaning="hours of one worker for a million rollouts that succeed, the failed ones paid for",
        ),
        Column(
            title=CPU,
            unit="s",
            entry=lambda row: Entry(_plain(row.cpu_s)),
            spare=6,
            meaning="busy seconds of the whole host's cores in a rollout",
        ),
        Column(title="n", entry=_count, meaning="trials that succeeded"),
    ]


def fitting(run: Run, width: int) -> list[Column]:
    """The columns that fit, each with a space between: a number is left out whole, never cut."""
    found = columns(run)
    while sum(column.width(run.rows) + 1 for column in found) - 1 > width:
        spared = max(found, key=lambda column: column.spare)
        if not spared.spare:
            break
        found.remove(spared)
    return found


def names(run: Run) -> list[str]:
    """What each row is called in the table: its address, or its name and a letter that a note explains."""
    letters = iter(string.ascii_lowercase)
    return [
        row.address if len(row.address) <= LONGEST_NAME else f"{parse(row.address).name} ({next(letters, '+')})"
        for row in run.rows
    ]


def _ms(estimate: Estimate | None, missing: str = NOTHING, *, estimated: bool = False) -> Entry:
    if estimate is None:
        return Entry(missing)
    return Entry(("~" if estimated else "") + short(estimate.value * 1e3), interval(estimate, 1e3))


def _slowdown(row: Row) -> Entry:
    # Nothing was measured here: the reference is what slowdown is counted from.
    return Entry("0", "") if row.reference and row.slowdown_s is not None else _ms(row.slowdown_s, estimated=row.estimated)


def _tax_rate(row: Row) -> Entry:
    return Entry(NOTHING) if row.tax_rate is None else Entry(*percent(row.tax_rate))


def _worker_hours(row: Row) -> Entry:
    hours = row.worker_hours()
    return Entry(NOTHING) if hours is None else Entry(short(hours.value), interval(hours))


def _plain(estimate: Estimate | None) -> str:
    return NOTHING if estimate is None else short(estimate.value)


def _small(row: Row, text: str) -> str:
    return text if row.n else NOTHING


def _count(row: Row) -> Entry:
    """Trials that succeeded, and of how many where not all did."""
    return Entry(str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}")
