"""The table of a run of pools: as Markdown that reads as text too, and what is to be said below it."""

from collections.abc import Sequence

from excise.meter.pool_records import PoolHeader, PoolTrial
from excise.report.figures.mixture import against_exact
from excise.report.numbers import interval, short
from excise.report.pool_words import every_row, least_and_most, start_of
from excise.stats.estimate import Estimate
from excise.stats.pools import PoolRow, cpu_ratio, rows


def table(header: PoolHeader, trials: Sequence[PoolTrial]) -> str:
    """Every cell, then how closest states compare with exact matches, then what failed and who was not asked."""
    notes = "".join(f"- {note}\n" for note in pool_notes(header, trials))
    return f"{every_row(rows(trials, header.plan.cells)).markdown()}\n{notes}"


def pool_notes(header: PoolHeader, trials: Sequence[PoolTrial]) -> list[str]:
    found = rows(trials, header.plan.cells)
    lines = [line for source in dict.fromkeys(row.cell.source for row in found) for line in _compared(source, found, trials)]
    lines += [f"{_called(row)} failed {count} times: {why}" for row in found for why, count in row.failures]
    lines += [f"{one.address} was not measured: {one.reason}" for one in header.skipped]
    blocks = max((row.blocks for row in found), default=0)
    plan = header.plan
    return [*lines, f"{blocks} blocks, image {plan.image}, seed {plan.seed}, {header.provenance.kernel}"]


def _compared(source: str, found: Sequence[PoolRow], trials: Sequence[PoolTrial]) -> list[str]:
    """Each cell of a mix, and in how many of them the closest state is better or worse beyond its interval."""
    own = [row for row in found if row.cell.source == source]
    times, spent = against_exact(own, trials), against_exact(own, trials, cpu_ratio)
    if not times:
        return []
    lines = [
        f"{source}, Zipf {place[0]:g}, places for {place[1]} %: closest state / exact match = {_times(one)} of the time"
        + (f", {_times(spent[place])} of the core-seconds" if place in spent else "")
        for place, one in times.items()
    ]
    better = sum(one.high is not None and one.high < 1 for one in times.values())
    worse = sum(one.low is not None and one.low > 1 for one in times.values())
    most = max(one.value for one in times.values())
    told = f"{source}: the closest state is faster beyond its interval in {better} of {len(times)} cells, slower in {worse}"
    return [*lines, f"{told}; at most it takes {short(most)} times as long"]


def pool_sentence(trials: Sequence[PoolTrial]) -> str:
    """The one sentence of a run of pools: what the closest state saves of a mix; else the least and the most of a claim."""
    found = rows(trials)
    times = sorted(
        (one.value, source) for source in dict.fromkeys(row.cell.source for row in found) for one in _of(source, found, trials)
    )
    if not times:
        return least_and_most(found)
    cells = "one cell" if len(times) == 1 else f"{len(times)} cells"
    return (
        f"Handing out the closest state takes {short(times[0][0])} to {short(times[-1][0])} times as long as handing out exact "
        f"matches, over {cells}."
    )


def _of(source: str, found: Sequence[PoolRow], trials: Sequence[PoolTrial]) -> list[Estimate]:
    return list(against_exact([row for row in found if row.cell.source == source], trials).values())


def _times(one: Estimate) -> str:
    return f"{short(one.value)} x" + (f" [{interval(one)}]" if interval(one) else "")


def _called(row: PoolRow) -> str:
    return f"{row.cell.source}, {start_of(row.cell)}, {row.cell.claims} claims"
