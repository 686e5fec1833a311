"""The one sentence to repeat: how much of an hour is not work, and what the best of the measured would make of it."""

from excise.report.facts import Facts
from excise.report.numbers import duration, percent, short
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.rows import Row
from excise.stats.run import ratio


def sentence(facts: Facts) -> str:
    """From the dearest and the cheapest row that isolate, on the workload the page is about."""
    rows = sorted(facts.isolated, key=_total)
    if not rows:
        return f"No rollout of {facts.workload or 'this plan'} succeeded, so there is nothing to tell but why."
    dear, cheap = rows[-1], rows[0]
    if dear.tax_rate is None:
        return _without_tax(dear, cheap)
    if dear.tax_rate.value <= 0:
        return _begun(facts, f"rollouts of {dear.cell.workload} were not seen to take longer on {dear.name} than their work.")
    spent = f"of every hour that rollouts of {dear.cell.workload} spend on {dear.name}"
    told = _begun(facts, f"{spent}, {_minutes(dear)} are not work")
    if cheap is dear:
        return f"{told}."
    if not _apart(dear, cheap):
        return f"{told}; nothing else that was measured here is shown to be faster."
    return f"{told}; on {cheap.name} the same rollout takes {_share(_total(cheap) / _total(dear))} of the time."


def _begun(facts: Facts, told: str) -> str:
    """The sentence from its beginning, which says so where no interval stands behind it."""
    blocks = facts.run.blocks
    if blocks < FEWEST_BLOCKS:
        return f"In {'one block' if blocks == 1 else f'{blocks} blocks'}, too few to be sure, {told}"
    return told[:1].upper() + told[1:]


def _apart(dear: Row, cheap: Row) -> bool:
    """Whether the difference is more than chance; where there is no interval the sentence has said so."""
    if not dear.totals_s.keys() & cheap.totals_s.keys():
        return True
    low = ratio(dear, cheap).low
    return low is None or low > 1


def precision(facts: Facts) -> str:
    """How far the sentence can be trusted."""
    rows = sorted(facts.isolated, key=_total)
    if not rows:
        return ""
    dear, cheap = rows[-1], rows[0]
    parts: list[str] = []
    if dear.tax_rate is not None:
        rate, ends = percent(dear.tax_rate)
        parts.append(f"tax rate of {dear.name} {rate} %{_between(ends)}")
    if cheap is not dear and dear.totals_s.keys() & cheap.totals_s.keys():
        times = ratio(dear, cheap)
        ends = "" if times.low is None or times.high is None else f"{short(times.low)}..{short(times.high)}"
        parts.append(f"{dear.name} / {cheap.name} = {short(times.value)}{_between(ends)}")
    counts = f"n = {dear.n}" if cheap is dear or cheap.n == dear.n else f"n = {dear.n} and {cheap.n}"
    told = "; ".join([*parts, counts, f"{dear.actions} actions a rollout"])
    return told[:1].upper() + told[1:]


def caution(facts: Facts) -> str:
    """Empty where there are blocks enough for intervals."""
    blocks = facts.run.blocks
    if blocks >= FEWEST_BLOCKS:
        return ""
    measured = "One block was measured" if blocks == 1 else f"{blocks} blocks were measured"
    return f"{measured}: no mean or ratio here has an interval, which needs {FEWEST_BLOCKS}. Take differences as hints."


def _between(ends: str) -> str:
    return f" [{ends}, 95 %]" if ends else " [too few blocks for an interval]"


def _without_tax(dear: Row, cheap: Row) -> str:
    told = f"A rollout of {dear.cell.workload} takes {duration(_total(dear))} on {dear.name}"
    if cheap is dear:
        return f"{told}; how much of that is work is not known, because no reference ran."
    return f"{told} and {duration(_total(cheap))} on {cheap.name}, {short(_total(dear) / _total(cheap))} times less."


def _total(row: Row) -> float:
    return 0.0 if row.total_s is None else row.total_s.value


def _minutes(row: Row) -> str:
    assert row.tax_rate is not None
    minutes = 60 * row.tax_rate.value
    number = f"{minutes:.0f}" if 1 <= minutes <= 59 else f"{minutes:.1f}"
    return f"{number}\N{NO-BREAK SPACE}minutes"


def _share(share: float) -> str:
    if share >= 0.995:
        return "about as much"
    number = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"
    return f"{number}\N{NO-BREAK SPACE}%"
