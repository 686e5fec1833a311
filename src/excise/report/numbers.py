"""Numbers as text: three digits that mean something, and intervals that fit a table."""

from collections.abc import Iterable

from excise.stats.estimate import Estimate

NOTHING = "-"


def short(value: float) -> str:
    """At most three significant digits below a thousand, whole numbers above."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def interval(estimate: Estimate, scale: float = 1.0) -> str:
    """`low..high`: a dash would read as a minus beside a slowdown below zero."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{short(estimate.low * scale)}..{short(estimate.high * scale)}"


def percent(estimate: Estimate) -> tuple[str, str]:
    """A share with one decimal where it is close to all or nothing, so that 99.7 % does not read as 100 %."""
    ends = (estimate.low, estimate.high)
    shown = [None if x is None else f"{100 * x:.1f}" for x in ends]
    return f"{100 * estimate.value:.1f}", "" if None in shown else f"{shown[0]}..{shown[1]}"


def counted(counts: Iterable[int]) -> str:
    """How many trials a figure's rows have: `n = 8`, or `n = 8 to 64`."""
    found = sorted(set(counts))
    return f"n = {found[0]}" if len(found) == 1 else f"n = {found[0]} to {found[-1]}"


def duration(seconds: float) -> str:
    """For sentences: the unit that leaves a number one can say. On a virtual clock much takes no time at all."""
    if not seconds:
        return "0 s"
    if abs(seconds) >= 1:
        return f"{short(seconds)} s"
    return f"{short(seconds * 1e3)} ms" if abs(seconds) >= 1e-4 else f"{short(seconds * 1e6)} us"
