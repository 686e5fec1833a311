"""The action ladder: every way to an action (address and shell mode), by what it costs to take it."""

from collections.abc import Iterable

import msgspec

from excise.meter.records import Cell
from excise.stats.estimate import Estimate
from excise.stats.projection import LONG, MILLION, worker_hours
from excise.stats.rows import Row


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch path."""

    cell: Cell
    dispatch_s: Estimate
    """Per action."""
    hours: Estimate
    """Worker-hours of dispatch alone, over all actions of all rollouts."""
    estimated: bool
    """No clock runs inside: by null actions."""
    reference: bool


def ladder(rows: Iterable[Row], actions: int = LONG, rollouts: float = MILLION) -> tuple[Rung, ...]:
    """A rung for each address and shell mode whose dispatch is known, the cheapest first.

    Where a path was measured in several cells, the one with the most trials speaks for it, of equals the first.
    """
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        path = (row.cell.address, row.cell.shell)
        if row.dispatch_s is not None and row.cell.concurrency == 1 and (path not in best or row.n > best[path].n):
            best[path] = row
    rungs = [_rung(row, row.dispatch_s, actions * rollouts) for row in best.values() if row.dispatch_s is not None]
    return tuple(sorted(rungs, key=lambda rung: rung.dispatch_s.value))


def _rung(row: Row, dispatch: Estimate, actions: float) -> Rung:
    return Rung(
        cell=row.cell,
        dispatch_s=dispatch,
        hours=worker_hours(dispatch, actions),
        estimated=row.estimated,
        reference=row.reference,
    )
