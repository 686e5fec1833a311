"""The table of a latency run: as Markdown that reads as text too, and for the page."""

from collections.abc import Sequence

from excise.meter.latency_records import LatencyCell, LatencyHeader, LatencyTrial
from excise.report.numbers import NOTHING, duration, short
from excise.report.parts import Table
from excise.stats.estimate import Estimate
from excise.stats.latency import LatencyRow, ratio, rows

_HEADS = ("operation", "substrate", "n", "p50", "p95", "floor p50", "x floor", "close p50")


def table(header: LatencyHeader, trials: Sequence[LatencyTrial]) -> str:
    """Every cell, then how the others compare with ours, then what failed."""
    notes = "".join(f"- {note}\n" for note in latency_notes(header, trials))
    return f"{latency_table(trials).markdown()}\n{notes}"


def latency_table(trials: Sequence[LatencyTrial]) -> Table:
    """Every cell."""
    body = tuple(_entries(row) for row in rows(trials))
    return Table(name="latencies", title="Single operations", heads=_HEADS, rows=body, numbers=2)


def latency_notes(header: LatencyHeader, trials: Sequence[LatencyTrial]) -> list[str]:
    """How rows compare, what failed, who was not measured, by whom."""
    found = rows(trials)
    lines = _comparisons(trials, [row.cell for row in found])
    lines += [f"{row.cell.address} {row.cell.operation} failed {n} times: {why}" for row in found for why, n in row.failures]
    lines += [f"{one.address} was not measured: {one.reason}" for one in header.skipped]
    who = "root" if header.privileged else "an ordinary user"
    return [*lines, f"measured by {who}, {header.plan.blocks} blocks, image {header.plan.image}, {header.provenance.kernel}"]


def latency_sentence(found: Sequence[LatencyRow]) -> str:
    """The one sentence of a run that measured operations alone."""
    known = sorted((row for row in found if row.cell.operation == "exec" and not row.cell.tight and row.p50_s), key=_p50)
    if not known:
        return "No action's latency was measured, so there is nothing to tell but why."
    dear, cheap = known[-1], known[0]
    told = f"One action on {dear.cell.address} takes {duration(_p50(dear))}{_over_floor(dear)}"
    if dear is cheap:
        return f"{told}."
    return f"{told}; on {cheap.cell.address} it takes {duration(_p50(cheap))}{_over_floor(cheap)}."


def _over_floor(row: LatencyRow) -> str:
    return "" if row.to_floor is None else f", {short(row.to_floor.value)} times what the kernel asks"


def _p50(row: LatencyRow) -> float:
    return 0.0 if row.p50_s is None else row.p50_s.value


def _entries(row: LatencyRow) -> tuple[str, ...]:
    name = f"{row.cell.operation}, in a row" if row.cell.tight else row.cell.operation
    return (
        name,
        row.cell.address,
        str(row.n),
        _time(row.p50_s),
        _time(row.p95_s),
        _time(row.floor_p50_s),
        _times(row.to_floor),
        _time(row.close_p50_s),
    )


def _comparisons(trials: Sequence[LatencyTrial], cells: Sequence[LatencyCell]) -> list[str]:
    said: list[str] = []
    plain = [cell for cell in cells if not cell.tight]
    for cell in plain:
        ours = next((one for one in plain if one.operation == cell.operation and one.address == "namespace"), None)
        if ours is not None and cell != ours:
            said.append(f"{cell.operation}: {cell.address} / namespace = {_times(ratio(trials, cell, ours))}")
        bare = cell.address.removesuffix("+guest")
        without = next((one for one in plain if one.operation == cell.operation and one.address == bare), None)
        if without is not None and bare != cell.address:
            said.append(f"{cell.operation}: {bare} / {cell.address} = {_times(ratio(trials, without, cell))}")
    return said


def _time(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    ends = "" if estimate.low is None or estimate.high is None else f" [{duration(estimate.low)}, {duration(estimate.high)}]"
    return duration(estimate.value) + ends


def _times(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    ends = "" if estimate.low is None or estimate.high is None else f" [{short(estimate.low)}, {short(estimate.high)}]"
    return f"{short(estimate.value)} x{ends}"
