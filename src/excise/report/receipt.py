"""The decomposition as a till receipt: what one rollout bought, and what it paid for it."""

import msgspec

from excise.report.facts import Facts
from excise.report.numbers import duration, percent, short
from excise.report.terms import parts_s
from excise.stats.estimate import Estimate
from excise.stats.rows import Row

_EACH = frozenset({"dispatch", "slowdown", "work"})
_NOTHING_S = 5e-9
_WORDS = {"unattributed": "the meter itself", "setup": "set-up"}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a receipt."""

    name: str
    detail: str = ""
    """As `10 x 50.9 ms`."""
    price: str
    work: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One substrate's."""

    title: str
    subtitle: str
    items: tuple[Item, ...]
    total: str
    total_interval: str
    """Empty where there are too few blocks for one."""
    tax: str
    """In time; empty where no reference ran."""
    rate: str
    rate_interval: str
    footer: str


def receipts(facts: Facts) -> tuple[Receipt, ...]:
    """Of every row the page's first half is about, the dearest first."""
    rows = sorted((row for row in facts.main if row.total_s is not None), key=lambda row: -_value(row.total_s))
    return tuple(receipt(row) for row in rows)


def receipt(row: Row) -> Receipt:
    """What is on it adds up to its total, as the terms do."""
    assert row.total_s is not None
    hours = row.worker_hours()
    count = str(row.n) if row.n == row.attempted else f"{row.n} of {row.attempted}"
    million = "" if hours is None else f"1,000,000 of these: {short(hours.value)} worker-hours. "
    rate, rate_interval = ("", "") if row.tax_rate is None else percent(row.tax_rate)
    return Receipt(
        title=row.name,
        subtitle=f"one rollout of {row.cell.workload}, {row.actions} actions" + (", the reference" if row.reference else ""),
        items=tuple(_items(row)),
        total=duration(row.total_s.value),
        total_interval=_ends(row.total_s),
        tax="" if row.tax_s is None else duration(row.tax_s.value),
        rate=rate,
        rate_interval=rate_interval,
        footer=f"{million}n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{count}.",
    )


def _items(row: Row) -> list[Item]:
    found: list[Item] = []
    about = "~" if row.estimated else ""
    for term, seconds in parts_s(row).items():
        if (term == "slowdown" and row.reference) or (term == "unattributed" and abs(seconds) < _NOTHING_S):
            continue  # Zero by definition, as it is what slowdown is counted from; or too little to print.
        each = seconds / row.actions if row.actions else 0.0
        detail = f"{row.actions} x {about if term != 'work' else ''}{duration(each)}" if term in _EACH else ""
        found.append(Item(name=_WORDS.get(term, term), detail=detail, price=duration(seconds), work=term == "work"))
    return found


def _ends(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{duration(estimate.low)} to {duration(estimate.high)}"


def _value(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.value
