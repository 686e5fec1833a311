"""What `excise pool` shows: a table while it runs and at its end, or a line now and then where there is no terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from excise.cli.sentences import plain
from excise.loading.processor import Spent
from excise.loading.tally import Tally
from excise.report.numbers import duration, short
from excise.stats.quantile import point

if TYPE_CHECKING:
    from excise.substrates.pool.figures import Figures

_MOST_LINES = 5
"""Of failing states, quarantined sandboxes and reasons: a table that scrolls is not read."""
_LONGEST = 160
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def table(title: str, tally: Tally, figures: "Figures", spent: Spent) -> RenderableType:
    """All of it. Reasons are a sandbox's or a substrate's words: nothing of them reaches the terminal as a command."""
    hits = Table(box=None, pad_edge=False)
    hits.add_column("claim found")
    for head in ("claims", "share", "p50", "p95", "longest"):
        hits.add_column(head, justify="right")
    counts = tally.hits()
    whole = sum(counts.values())
    for hit, count in counts.items():
        hits.add_row(hit, str(count), f"{100 * count / whole:.0f} %", *_times(tally, hit))
    if whole:
        hits.add_row("all", str(whole), "", *_times(tally, None), style="bold")
    rest = Table(box=None, pad_edge=False, show_header=False)
    rest.add_column(style="dim", no_wrap=True)
    rest.add_column(overflow="fold")
    for name, text in rows(tally, figures, spent):
        rest.add_row(name, Text(text))
    return Group(Text(title, style="bold"), hits, Text(""), rest)


def rows(tally: Tally, figures: "Figures", spent: Spent) -> Iterator[tuple[str, str]]:
    """A name and a sentence each, in the order of the table."""
    lost = f", {tally.lost} lost their sandbox" if tally.lost else ""
    failed = tally.failures.total()
    yield (
        "rollouts",
        f"{tally.arrived} arrived, {tally.waiting} wait, {tally.holding} run, {tally.ended} done, {failed} failed{lost}",
    )
    yield "refill", _refill(figures)
    yield "idle", _idle(figures)
    yield "CPU", f"{spent.own_s:.1f} s this process, {spent.children_s:.1f} s its children, {spent.host_s:.1f} s the whole host"
    yield (
        "waste",
        f"{figures.unused} made and never claimed ({duration(figures.unused_s)} of making); {figures.evicted} evicted, "
        f"{figures.expired} expired, {figures.dead} found dead",
    )
    yield "after use", f"{figures.reused} reused, {figures.discarded} closed, {len(figures.quarantine)} quarantined"
    yield from _trouble(tally, figures)


def line(at_s: float, tally: Tally, figures: "Figures", spent: Spent) -> str:
    """The same in one line, for a log."""
    hits = ", ".join(f"{hit} {count}" for hit, count in tally.hits().items()) or "none yet"
    p50, p95, _ = _times(tally, None)
    return (
        f"{at_s:.0f} s: {tally.arrived} arrived, {tally.waiting} wait, {tally.failures.total()} failed; hits: {hits}; "
        f"claim p50 {p50}, p95 {p95}; refill lag p50 {_quantile(figures.refill_lag_s, 0.5)}; "
        f"idle {sum(figures.idle.values())} ({_size(figures.idle_bytes)}); unused {figures.unused}; "
        f"CPU {spent.own_s + spent.children_s:.1f} s"
    )


def _times(tally: Tally, hit: str | None) -> tuple[str, str, str]:
    found = [tally.quantile_s(q, hit) for q in (0.5, 0.95, 1.0)]
    p50, p95, longest = ("-" if one is None else duration(one) for one in found)
    return p50, p95, longest


def _refill(figures: "Figures") -> str:
    lag = f"lag p50 {_quantile(figures.refill_lag_s, 0.5)}, p95 {_quantile(figures.refill_lag_s, 0.95)}"
    held = f"; held back: {_tame(figures.held_back)}" if figures.held_back else ""
    return f"{figures.refilled} made, {figures.filling} in the making; {lag}{held}"


def _idle(figures: "Figures") -> str:
    depths = ", ".join(f"{count} {depth}" for depth, count in figures.idle.items() if count) or "none"
    cap = "" if figures.memory_cap_bytes is None else f" of {_size(figures.memory_cap_bytes)}"
    return (
        f"{depths}; {_size(figures.idle_bytes)}; {figures.templates} templates; "
        f"in all {figures.count} of {figures.count_cap} sandboxes, {_size(figures.memory_bytes)}{cap}"
    )


def _trouble(tally: Tally, figures: "Figures") -> Iterator[tuple[str, str]]:
    for one in figures.failing[:_MOST_LINES]:
        again = "not tried again until a claim of it succeeds" if one.next_s is None else f"again in {duration(one.next_s)}"
        yield "failing", f"{_tame(one.state)}, {one.attempts} times in a row, {again}: {_tame(one.reason)}"
    for one in figures.quarantine[-_MOST_LINES:]:
        yield "quarantine", f"{_tame(one.state)}, sandbox {one.sandbox[:16]}: {_tame('; '.join(one.evidence))}"
    for reason, count in tally.failures.most_common(_MOST_LINES):
        yield "failed", f"{count} x {_tame(reason)}"
    for reason, count in tally.losses.most_common(_MOST_LINES):
        yield "lost", f"{count} x {_tame(reason)}"


def _quantile(values: tuple[float, ...], q: float) -> str:
    return duration(point(sorted(values), q)) if values else "-"


def _size(size_bytes: float) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size_bytes >= unit), (1 << 10, "KiB"))
    return f"{short(size_bytes / unit)} {name}"


def _tame(text: str) -> str:
    one_line = " ".join(plain(text, but="\n").split())
    return one_line if len(one_line) <= _LONGEST else one_line[: _LONGEST - 1] + "…"
