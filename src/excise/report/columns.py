"""Which columns there are and what each says of a row; terminal and Markdown only lay them out."""

import string
from collections.abc import Callable, Iterable

import msgspec

from excise.address import parse
from excise.errors import SpecError
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
    labels = names(run)
    lengths = sorted({row.actions for row in run.rows if row.actions}) or [0]
    length = str(lengths[0]) if len(lengths) == 1 else "actions"
    setup = " + set-up" if any(row.setup_s for row in run.rows) else ""
    reset = " (or reset)" if any(row.reset_s for row in run.rows) else ""
    return [
        Column(title="substrate", entry=lambda row: Entry(labels[row.address], "reference" if row.reference else "")),
        *_factors(run),
        Column(title="start", unit="ms", entry=_start, meaning="until a first command has answered"),
        *_setup(run),
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
        Column(title="cleanup", unit="ms", entry=_cleanup, spare=2, meaning="until nothing is left"),
        Column(
            title="total",
            unit="ms, mean",
            entry=lambda row: _ms(row.total_s),
            meaning=f"a rollout, start{setup} + {length} x (dispatch + slowdown + work) + cleanup{reset}",
        ),
        *_waiting(run),
        *_beyond_means(),
        *_written(run),
        Column(
            title=CPU,
            unit="s",
            entry=lambda row: Entry(_plain(row.cpu_s)),
            spare=6,
            meaning="busy seconds of the whole host's cores in a rollout",
        ),
        Column(title="n", entry=_count, meaning="trials that succeeded"),
    ]


def _beyond_means() -> list[Column]:
    """Quantiles, the tax rate, what all of it comes to, and single actions."""
    return [
        Column(title="total", unit="ms, p50", entry=lambda row: _ms(row.total_p50_s, _few(row, 0.5)), spare=4),
        Column(title="total", unit="ms, p95", entry=lambda row: _ms(row.total_p95_s, _few(row, 0.95)), spare=5),
        Column(title="tax rate", unit="%", entry=_tax_rate, meaning="the share of the total that is not work"),
        Column(
            title=HOURS,
            unit="per 1M",
            entry=_worker_hours,
            spare=3,
            meaning="hours of one worker for a million rollouts that succeed, the failed ones paid for",
        ),
        Column(
            title="action",
            unit="ms, p50",
            entry=lambda row: _ms(row.action_p50_s, _few(row, 0.5)),
            spare=8,
            meaning="one action alone, from asking to its answer",
        ),
        Column(
            title="amortised",
            unit="ms/action",
            entry=lambda row: _ms(row.amortised_s),
            spare=9,
            meaning="the total over the number of actions",
        ),
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


def names(run: Run) -> dict[str, str]:
    """What each address is called in the table: itself, or its name and a letter that a note explains."""
    letters = iter(string.ascii_lowercase)
    found: dict[str, str] = {}
    for row in run.rows:
        if row.address not in found:
            short_enough = len(row.address) <= LONGEST_NAME
            found[row.address] = row.address if short_enough else f"{_name(row.address)} ({next(letters, '+')})"
    return found


def _name(address: str) -> str:
    try:
        return parse(address).name
    except SpecError:
        return address[:LONGEST_NAME]  # somebody else's results may name anything


def _factors(run: Run) -> list[Column]:
    """What tells rows of one substrate apart; no column where nothing does."""
    found: list[Column] = []
    if len({row.cell.workload for row in run.rows}) > 1:
        found.append(Column(title="workload", entry=lambda row: Entry(row.cell.workload), meaning="what a rollout does"))
    if any(row.cell.factors() for row in run.rows):
        found.append(Column(title="factors", entry=_unusual, meaning="what is not as usual"))
    if any(row.reset_s for row in run.rows):
        found.append(
            Column(
                title="reset",
                unit="ms",
                entry=lambda row: _ms(row.reset_s),
                spare=1,
                meaning="back to the start state in a sandbox that lives on",
            )
        )
    return found


def _setup(run: Run) -> list[Column]:
    if all(row.setup_s is None for row in run.rows):
        return []
    meaning = "from there to the start state"
    return [Column(title="set-up", unit="ms", entry=lambda row: _ms(row.setup_s), spare=1, meaning=meaning)]


def _waiting(run: Run) -> list[Column]:
    """Where rollouts ran at once or arrived at a rate, what they waited is what was asked."""
    if all(row.throughput_per_s is None for row in run.rows):
        return []
    return [
        Column(
            title="waiting",
            unit="ms, p50",
            entry=lambda row: _ms(row.waited_p50_s, _few_of_lanes(row, 0.5)),
            spare=1,
            meaning="from when a rollout was to begin to its end",
        ),
        Column(title="waiting", unit="ms, p95", entry=lambda row: _ms(row.waited_p95_s, _few_of_lanes(row, 0.95)), spare=2),
        Column(
            title="done",
            unit="a second",
            entry=lambda row: _per_second(row.throughput_per_s),
            spare=3,
            meaning="rollouts that succeeded",
        ),
    ]


def _few_of_lanes(row: Row, q: float) -> str:
    return NOTHING if row.throughput_per_s is None else _few(row, q)


def _per_second(estimate: Estimate | None) -> Entry:
    return Entry(NOTHING) if estimate is None else Entry(short(estimate.value), interval(estimate))


def _unusual(row: Row) -> Entry:
    return Entry(", ".join(f"{name} {value}" for name, value in row.cell.factors().items()))


def _written(run: Run) -> list[Column]:
    if all(row.written_bytes is None for row in run.rows):
        return []
    meaning = "what the whole host wrote to files on disks in a rollout"
    return [Column(title="written", unit="MB", entry=_megabytes, spare=7, meaning=meaning)]


def _megabytes(row: Row) -> Entry:
    return Entry(NOTHING) if row.written_bytes is None else Entry(short(row.written_bytes.value / 1e6))


def _ms(estimate: Estimate | None, missing: str = NOTHING, *, estimated: bool = False) -> Entry:
    if estimate is None:
        return Entry(missing)
    return Entry(("~" if estimated else "") + short(estimate.value * 1e3), interval(estimate, 1e3))


def _start(row: Row) -> Entry:
    # A sandbox that lives on was started for an earlier rollout, and is cleaned up after a later one.
    return Entry(NOTHING) if row.start_s is not None and not row.start_s.value else _ms(row.start_s)


def _cleanup(row: Row) -> Entry:
    return Entry(NOTHING) if row.cleanup_s is not None and not row.cleanup_s.value else _ms(row.cleanup_s)


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


def _few(row: Row, q: float) -> str:
    """Why there is no quantile: too few trials, or enough that go together in too few blocks."""
    if not row.n:
        return NOTHING
    return f"n<{fewest(q)}" if row.n < fewest(q) else "too few"


def _count(row: Row) -> Entry:
    """Trials that succeeded, and of how many where not all did."""
    return Entry(str(row.n) if row.n == row.attempted else f"{row.n}/{row.attempted}")
