"""The tables of a page beside those of its figures: every row, break-even lengths, failures, where the numbers are from."""

from itertools import combinations

from excise.meter.records import Provenance
from excise.report.columns import columns
from excise.report.facts import Facts
from excise.report.notes import skipped_name
from excise.report.numbers import interval, percent, short
from excise.report.parts import Table
from excise.stats.breakeven import BreakEven, break_even
from excise.stats.control import controlled
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.journey import journey_s
from excise.stats.rows import Row
from excise.stats.run import Run

_MOST_PAIRS = 15
_MOST_REASONS = 5


def every_row(run: Run, rows: tuple[Row, ...] | None = None) -> Table:
    """What the terminal prints, with every column; of `rows` if not of all trials."""
    shown = columns(run)
    heads = tuple(f"{column.title} ({column.unit})" if column.unit else column.title for column in shown)
    body: list[tuple[str, ...]] = []
    for row in run.rows if rows is None else rows:
        entries = [column.entry(row) for column in shown]
        body.append(tuple(f"{entry.value} [{entry.interval}]" if entry.interval else entry.value for entry in entries))
    words = sum(column.title in ("substrate", "workload", "factors") for column in shown)
    name, title = ("rows", "Every row") if rows is None else ("quiet-rows", "The same without noisy trials")
    return Table(name=name, title=title, heads=heads, rows=tuple(body), numbers=words)


def break_evens(facts: Facts) -> Table | None:
    """Every pair of those that isolate; None where there is no pair."""
    rows = sorted(facts.isolated, key=lambda row: row.total_s.value if row.total_s else 0.0)
    body: list[tuple[str, ...]] = []
    for first, second in list(combinations(rows, 2))[:_MOST_PAIRS]:
        if first.costs is not None and second.costs is not None:
            found = break_even(first.costs, second.costs)
            body.append((first.name, second.name, _told(found, first, second), _certain(found, first)))
    if not body:
        return None
    heads = ("A", "B", "cheaper", "beyond the 95 % interval")
    return Table(name="break-even", title="Break-even lengths", heads=heads, rows=tuple(body), numbers=4)


def _certain(found: BreakEven, first: Row) -> str:
    if first.blocks is None or first.blocks.n < FEWEST_BLOCKS:
        return "too few blocks"
    return "yes" if found.certain else "no"


def control(run: Run) -> list[Table]:
    """What blocks with every daemon still say beside the run's own; none where there was no such block."""
    found = controlled(run)
    if not found:
        return []
    words = {True: "yes", False: "no", None: "too few blocks"}
    body: list[tuple[str, ...]] = []
    for one in found:
        ratios = [(short(ratio.value), interval(ratio) or "-") for ratio in (one.measured, one.control)]
        body.append((one.cell.address, one.cell.workload, *ratios[0], *ratios[1], words[one.agrees], str(one.n)))
    heads = (
        *("substrate", "workload", "x reference", "95 % interval", "x reference, daemons still", "95 % interval"),
        *("intervals meet", "control blocks"),
    )
    title = "The same ratios with every daemon stopped"
    return [Table(name="control", title=title, heads=heads, rows=tuple(body), numbers=2)]


def journey(run: Run) -> list[Table]:
    """What the way to a sandbox takes of a rollout; none where no server is in between."""
    body: list[tuple[str, ...]] = []
    for row in run.rows:
        if found := journey_s(row):
            assert row.total_s is not None
            parts = [(short(one.value * 1e3), interval(one, 1e3) or "-") for one in (*found.values(), row.total_s)]
            body.append((row.address, row.cell.workload, *(word for part in parts for word in part), str(row.n)))
    heads = ["substrate", "workload"]
    for name in ("wire", "server", "sandbox", "rollout"):
        heads += (f"{name} (ms)", "95 % interval")
    title = "What the way to the sandbox takes: mean time a rollout"
    return [Table(name="journey", title=title, heads=(*heads, "n"), rows=tuple(body), numbers=2)] if body else []


def _told(found: BreakEven, first: Row, second: Row) -> str:
    match found.outcome:
        case "equal":
            return "neither: they cost the same at every length"
        case "always":
            return f"{second.name}, at every length"
        case "never":
            return f"{first.name}, at every length"
        case "at":
            assert found.length is not None
            longer, shorter = (second, first) if found.above else (first, second)
            ends = ""
            if found.length.low is not None and found.length.high is not None:
                ends = f" [{_length(found.length.low)} to {_length(found.length.high)}]"
            return f"{longer.name} above {_length(found.length.value)} actions{ends}, {shorter.name} below"


def _length(value: float) -> str:
    return "any length" if value == float("inf") else short(value)


def failures(run: Run) -> Table | None:
    """Success by row, and the reasons of what failed; None where nothing did."""
    body: list[tuple[str, ...]] = []
    for row in run.rows:
        if row.failures and row.success is not None:
            share, ends = percent(row.success)
            reasons = "; ".join(f"{count} x {reason}" for reason, count in row.failures[:_MOST_REASONS])
            more = f"; and {len(row.failures) - _MOST_REASONS} other reasons" if len(row.failures) > _MOST_REASONS else ""
            body.append((row.name, row.cell.workload, f"{row.n} of {row.attempted}", f"{share} % [{ends}]", f"{reasons}{more}"))
    if not body:
        return None
    heads = ("substrate", "workload", "succeeded", "share [95 %]", "reasons")
    return Table(name="failures", title="Trials that failed", heads=heads, rows=tuple(body), numbers=5)


def skipped(run: Run) -> Table | None:
    """Who was asked for and could not run; None where everybody could."""
    if not run.skipped:
        return None
    body = tuple((skipped_name(one), one.reason) for one in run.skipped)
    return Table(name="skipped", title="Skipped", heads=("substrate", "reason, and what would change it"), rows=body, numbers=2)


def origin(found: Provenance, seed: int, image: str, run_id: str) -> Table:
    """Where the numbers are from; it names no person and no path."""
    pairs: list[tuple[str, str]] = [
        ("run", run_id),
        ("host", f"{found.host} (a hash that is the same for runs of one host)"),
        ("CPU", f"{found.cores} cores of {found.cpu}, {found.machine}"),
        ("clock of the cores", found.governor),
        ("virtual machine", found.virtual),
        ("memory", f"{found.memory_bytes / 2**30:.1f} GiB, swap {found.swap_bytes / 2**30:.1f} GiB"),
        ("kernel", f"{found.kernel}, clock source {found.clock}"),
        ("distribution", found.distribution),
        ("control groups", found.cgroup),
        ("file system", found.filesystem),
        ("image", f"{image}, {found.image_digest or 'digest unknown'}"),
        ("measured by", {True: "root", False: "an ordinary user", None: "unknown"}[found.privileged]),
        ("excise", f"{found.excise}, commit {found.commit}, source {found.code}"),
        ("Python", found.python),
        ("seed", str(seed)),
    ]
    for address, versions in found.versions.items():
        if versions:
            said = (text if text.startswith(name) else f"{name} {text}" for name, text in versions.items())
            pairs.append((address, ", ".join(said)))
    bugs = "; ".join(f"{name}: {state}" for name, state in found.mitigations.items() if state != "Not affected")
    pairs.append(("mitigations", bugs or "none needed"))
    return Table(name="provenance", title="Provenance", heads=("what", "value"), rows=tuple(pairs), numbers=2)
