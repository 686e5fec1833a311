"""Advice as text: the ranking, where it turns, what isolation costs, and what nobody measured."""

import math
import textwrap
from collections.abc import Iterable

from excise.economics.answer import Advice, Apart, Crossing, Offer, PoolPays
from excise.report.numbers import duration, interval, short
from excise.report.projected import aligned, count
from excise.stats.estimate import Estimate

_WIDTH = 120
_UNSURE = "about"


def text(advice: Advice) -> str:
    """All of it, as plain text."""
    parts = [
        _asked(advice),
        _ranking(advice),
        _told(advice),
        *_titled("Break-even", [*map(_crossing, advice.crossings), *map(_pool, advice.pools)]),
        *_titled("What isolation costs", map(_apart, advice.kernels)),
        *_titled("Not offered", (f"{one.address}: {one.reason}" for one in advice.refused)),
        *_titled("Not measured here", (f"{one.name}: {one.reason}" for one in advice.unmeasured)),
        _notes(advice),
    ]
    return "\n\n".join(parts) + "\n"


def _asked(advice: Advice) -> str:
    demand = advice.demand
    work = "work as measured" if demand.work_s is None else f"{demand.work_s:g} s of work"
    parts = [f"{demand.actions} actions a rollout, {work}", f"{demand.parallel} at once"]
    if demand.resets:
        parts.append(f"{demand.resets:g} resets in each")
    if demand.think_s:
        parts.append(f"{demand.think_s:g} s of thinking after each action")
    if demand.starts_per_hour is not None:
        parts.append(f"{demand.starts_per_hour:g} starts an hour")
    wanted = f"kernel {demand.kernel} or better; {', '.join(sorted(demand.isolates)) or 'nothing'} apart"
    return f"{', '.join(parts)}\n{wanted}; from {advice.workload}, runs {', '.join(advice.runs)}"


def _ranking(advice: Advice) -> str:
    unit = advice.unit if advice.demand.prices.plain else "cost"
    lines = [["", f"{unit}", "95 %", "x cheapest", "more, 95 %", "tax", "kernel"]]
    for offer in advice.offers:
        mark = "=" if offer.tied else " "
        lines.append(
            [
                f"{mark} {offer.name}",
                short(offer.cost.value),
                interval(offer.cost),
                short(offer.ratio.value),
                interval(offer.more) if offer is not advice.offers[0] else "",
                duration(offer.seconds.waiting_s),
                offer.kernel,
            ]
        )
    return f"Of 1,000 rollouts\n{aligned(lines)}"


def _told(advice: Advice) -> str:
    """The advice itself, in sentences."""
    best, tied = advice.best, [offer for offer in advice.offers[1:] if offer.tied]
    said = [f"Cheapest: {best.name} (excise.connect({best.connect!r})): {best.reason}."]
    if tied:
        said.append(f"Not told apart from it (=): {'; '.join(one.name for one in tied)}.")
    rest = [offer for offer in advice.offers[1:] if not offer.tied]
    said += [f"{offer.name}: {short(offer.ratio.value)} times as much; {offer.reason}." for offer in _first_of_each(rest)]
    return _wrapped(said)


def _first_of_each(offers: Iterable[Offer]) -> list[Offer]:
    """The cheapest of each address: its other ways are in the table."""
    return list({offer.address: offer for offer in reversed(list(offers))}.values())[::-1]


def _crossing(one: Crossing) -> str:
    low, high = one.actions.low, one.actions.high
    if low is None or high is None:
        sure = "too few blocks for an interval"
    elif high == math.inf:
        sure = f"not told apart from {count(low)} actions on"
    else:
        sure = f"{count(low)} to {count(high)}"
    word = "" if one.certain else f"{_UNSURE} "
    return f"{one.shorter} is cheaper than {one.longer} below {word}{short(one.actions.value)} actions a rollout ({sure})"


def _pool(one: PoolPays) -> str:
    if one.per_hour is None:
        return f"a pool over {one.address} never pays: {one.reason}"
    return f"a pool over {one.address} pays from {_rate(one.per_hour)} starts an hour: {one.reason}"


def _rate(per_hour: Estimate) -> str:
    ends = [end for end in (per_hour.low, per_hour.high) if end is not None]
    words = " to ".join("no number" if end == math.inf else f"{end:.2g}" for end in ends)
    return f"{per_hour.value:.2g}" + (f" ({words})" if ends else " (too few blocks for an interval)")


def _apart(one: Apart) -> str:
    if one.name is None or one.cost is None or one.ratio is None:
        return f"kernel {one.kernel}: nothing that was measured here isolates so far"
    ends = interval(one.ratio)
    return (
        f"kernel {one.kernel} or better: {one.name}, {short(one.ratio.value)} times the cheapest{f' ({ends})' if ends else ''}"
    )


def _notes(advice: Advice) -> str:
    notes = list(dict.fromkeys(f"{offer.name}: {note}." for offer in advice.offers for note in offer.notes))
    if advice.foreign:
        notes.append("The results are of another host than this one: measure here before you rely on them.")
    if advice.demand.prices.plain:
        notes.append(
            "No price of waiting was given: an hour of a worker is all that counts, and what is made ahead costs as much. "
            "--waiting says what an hour of a rollout that waits is worth."
        )
    notes.append(
        "= cannot be told from the cheapest, or differs by less than 1 %. design/advise.md has the model, and how far it holds."
    )
    return _wrapped(notes)


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return [f"{title}\n" + "\n".join(_indented(line) for line in found)] if found else []


def _indented(line: str) -> str:
    return textwrap.fill(
        line, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )


def _wrapped(lines: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(line, _WIDTH, break_on_hyphens=False, break_long_words=False) for line in lines)
