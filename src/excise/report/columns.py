"""Which columns there are and what each says of a row; terminal and Markdown only lay them out."""

from collections.abc import Callable

import msgspec

from excise.report.numbers import NOTHING, interval, percent, short
from excise.stats.estimate import Estimate
from excise.stats.quantile import fewest
from excise.stats.rows import Row
from excise.stats.run import Run


class Entry(msgspec.Struct, frozen=True):
    """A table's cell: the number, and below or beside it how far it can be trusted."""

    value: str
    interval: str = ""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A heading, its unit, and what it says of a row. `narrow`: it stays where there are only 80 columns."""

    title: str
    unit: str = ""
    entry: Callable[[Row], Entry]
    narrow: bool = True


def columns(run: Run, *, narrow: bool = False) -> list[Column]:
    """The columns for `run`, only those that fit 80 characters if `narrow`."""
    small = f"n<{fewest(0.95)}"
    found = [
        Column(title="substrate", entry=_named),
        Column(title="start", unit="ms", entry=lambda row: _ms(row.start_s)),
        Column(title="dispatch", unit="ms/action", entry=lambda row: _ms(row.dispatch_s, estimated=row.estimated)),
        Column(title="slowdown", unit="ms/action", entry=_slowdown),
        Column(title="cleanup", unit="ms", entry=lambda row: _ms(row.cleanup_s)),
        Column(title="total", unit="ms, mean", entry=lambda row: _ms(row.total_s), narrow=False),
        Column(title="total", unit="ms, p50", entry=lambda row: _ms(row.total_p50_s, _small(row, f"n<{fewest(0.5)}"))),
        Column(title="total", unit="ms, p95", entry=lambda row: _ms(row.total_p95_s, _small(row, small)), narrow=False),
        Column(title="tax rate", unit="%", entry=_tax_rate),
        Column(title="hours", unit="per 1M", entry=_worker_hours, narrow=False),
        Column(title="CPU", unit="s", entry=lambda row: Entry(_plain(row.cpu_s)), narrow=False),
        Column(title="n", entry=_count),
    ]
    return [column for column in found if column.narrow or not narrow]


def _named(row: Row) -> Entry:
    return Entry(row.address, "reference" if row.reference else "")


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
    failed = row.attempted - row.n
    return Entry(str(row.n), f"{failed} failed" if failed else "")
