"""The table of a run of pools: as Markdown that reads as text too, and what is to be said below it."""

from collections.abc import Sequence

from excise.meter.pool_records import PoolHeader, PoolTrial
from excise.report.figures.mixture import against_exact
from excise.report.numbers import interval, short
from excise.report.pool_words import every_row, start_of
from excise.stats.pools import PoolRow, rows


def table(header: PoolHeader, trials: Sequence[PoolTrial]) -> str:
    """Every cell, then how closest states compare with exact matches, then what failed and who was not asked."""
    notes = "".join(f"- {note}\n" for note in pool_notes(header, trials))
    return f"{every_row(rows(trials)).markdown()}\n{notes}"


def pool_notes(header: PoolHeader, trials: Sequence[PoolTrial]) -> list[str]:
    found = rows(trials)
    lines = [line for source in dict.fromkeys(row.cell.source for row in found) for line in _compared(source, found, trials)]
    lines += [f"{_called(row)} failed {count} times: {why}" for row in found for why, count in row.failures]
    lines += [f"{one.address} was not measured: {one.reason}" for one in header.skipped]
    blocks = max((row.blocks for row in found), default=0)
    plan = header.plan
    return [*lines, f"{blocks} blocks, image {plan.image}, seed {plan.seed}, {header.provenance.kernel}"]


def _compared(source: str, found: Sequence[PoolRow], trials: Sequence[PoolTrial]) -> list[str]:
    """Each cell of a mix, and in how many of them the closest state is better or worse beyond its interval."""
    own = against_exact([row for row in found if row.cell.source == source], trials)
    if not own:
        return []
    lines = [
        f"{source}, Zipf {zipf:g}, places for {percent} %: closest state / exact match = {short(one.value)} x"
        + (f" [{interval(one)}]" if interval(one) else "")
        for (zipf, percent), one in own.items()
    ]
    better = sum(one.high is not None and one.high < 1 for one in own.values())
    worse = sum(one.low is not None and one.low > 1 for one in own.values())
    most = max(one.value for one in own.values())
    told = f"{source}: the closest state is faster beyond its interval in {better} of {len(own)} cells, slower in {worse}"
    return [*lines, f"{told}; at most it takes {short(most)} times as long"]


def _called(row: PoolRow) -> str:
    return f"{row.cell.source}, {start_of(row.cell)}, {row.cell.claims} claims"
