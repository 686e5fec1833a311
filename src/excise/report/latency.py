"""The table of a latency run, as Markdown that reads as text too."""

from collections.abc import Sequence

from excise.meter.latency_records import LatencyCell, LatencyHeader, LatencyTrial
from excise.report.numbers import NOTHING, duration, short
from excise.stats.estimate import Estimate
from excise.stats.latency import LatencyRow, ratio, rows

_HEADS = ("operation", "substrate", "n", "p50", "p95", "floor p50", "x floor", "close p50")


def table(header: LatencyHeader, trials: Sequence[LatencyTrial]) -> str:
    """Every cell, then how the others compare with ours, then what failed."""
    found = rows(trials)
    lines = [_line(_HEADS), _line(["---"] * len(_HEADS)), *(_line(_entries(row)) for row in found), ""]
    lines += _comparisons(trials, [row.cell for row in found])
    lines += [f"- {row.cell.address} {row.cell.operation} failed {n} times: {why}" for row in found for why, n in row.failures]
    lines += [f"- {one.address} was not measured: {one.reason}" for one in header.skipped]
    who = "root" if header.privileged else "an ordinary user"
    lines += [f"- measured by {who}, {header.plan.blocks} blocks, image {header.plan.image}, {header.provenance.kernel}"]
    return "\n".join(lines) + "\n"


def _entries(row: LatencyRow) -> list[str]:
    name = f"{row.cell.operation}, in a row" if row.cell.tight else row.cell.operation
    return [
        name,
        row.cell.address,
        str(row.n),
        _time(row.p50_s),
        _time(row.p95_s),
        _time(row.floor_p50_s),
        _times(row.to_floor),
        _time(row.close_p50_s),
    ]


def _comparisons(trials: Sequence[LatencyTrial], cells: Sequence[LatencyCell]) -> list[str]:
    said: list[str] = []
    plain = [cell for cell in cells if not cell.tight]
    for cell in plain:
        ours = next((one for one in plain if one.operation == cell.operation and one.address == "namespace"), None)
        if ours is not None and cell != ours:
            said.append(f"- {cell.operation}: {cell.address} / namespace = {_times(ratio(trials, cell, ours))}")
        bare = cell.address.removesuffix("+guest")
        without = next((one for one in plain if one.operation == cell.operation and one.address == bare), None)
        if without is not None and bare != cell.address:
            said.append(f"- {cell.operation}: {bare} / {cell.address} = {_times(ratio(trials, without, cell))}")
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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
