"""Isolation and economics in one table: how far apart sandboxes are, what a neighbour sees, and what that costs."""

from collections.abc import Mapping, Sequence

import msgspec

from excise.economics.measured import Measured
from excise.economics.weighed import Observed, Weighed
from excise.meter.records import Cell, Declared
from excise.stats.estimate import Estimate
from excise.stats.jackknife import PLAIN
from excise.stats.rows import Row
from excise.stats.run import Run
from excise.stats.whatif import NOT_ISOLATED

SMALL = "t0"
"""Minimal commands: starts and dispatch are read from it."""


LEAST_WORK_S = 0.005
"""Of an action: a slowdown of less work than that is a ratio of two nothings."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One substrate by one path. None: nobody measured it here."""

    address: str
    declared: Declared | None = None
    observed: Observed | None = None
    start_s: Estimate | None = None
    """To a first command's answer."""
    action_s: Estimate | None = None
    """Dispatch alone: from asking to the process and back."""
    estimated: bool = False
    """No clock runs inside: dispatch is by null actions."""
    slowdown: Estimate | None = None
    """Of work, as a part of it: 0 is as fast as a plain process."""
    work_s: float | None = None
    """Of an action that the slowdown was measured on."""
    reference: bool = False
    """Work is measured on it: its slowdown is nothing by definition."""
    reset_s: Estimate | None = None
    reset_by: str = ""
    cleanup_s: Estimate | None = None
    weighed: Weighed | None = None
    fit_in_host: float | None = None
    """So many idle ones would fill this host's memory; an extrapolation of what was weighed."""
    versions: Mapping[str, str] = {}
    run: str = ""
    blocks: int = 0
    n: int = 0
    elsewhere: bool = False
    """Of another run than most rows: its times are not beside theirs."""
    reason: str = ""
    """Why nothing was measured."""

    @property
    def measured(self) -> bool:
        return self.start_s is not None


def rows(measured: Measured, known: Sequence[str] = ()) -> tuple[Standing, ...]:
    """Everybody with a row, those of the run with the most of them first; then those that have none, and why."""
    base = max(measured.runs, key=lambda run: (len({row.address for row in run.rows if row.n}), run.header.started))
    order = dict.fromkeys((*(row.address for row in base.rows), *measured.addresses))
    found = [one for address in order if (one := _standing(measured, base, address)) is not None]
    there = {one.address for one in found}
    reasons = {one.address: one.reason for one in measured.skipped}
    absent = [a for a in dict.fromkeys((*reasons, *known)) if a not in there and a.partition("+")[0] not in NOT_ISOLATED]
    found += [
        Standing(
            address=address,
            declared=measured.declared.get(address),
            observed=measured.observed.get(address),
            weighed=measured.weighed.get(address),
            reason=reasons.get(address, ""),
        )
        for address in absent
    ]
    return tuple(found)


def _standing(measured: Measured, base: Run, address: str) -> Standing | None:
    for run in (base, *(run for run in measured.runs if run is not base)):
        plain = [row for row in run.rows if row.address == address and row.n and _plain(row.cell)]
        if plain:
            return _told(measured, run, address, plain, elsewhere=run is not base)
    return None


def _plain(cell: Cell) -> bool:
    return cell == Cell(address=cell.address, workload=cell.workload)


def _told(measured: Measured, run: Run, address: str, plain: Sequence[Row], *, elsewhere: bool) -> Standing:
    small = next((row for row in plain if row.cell.workload == SMALL), plain[0])
    large = max(plain, key=lambda row: row.work_s.value if row.work_s is not None else 0.0)
    weighed = measured.weighed.get(address)
    reset_s, reset_by = _reset(run, address)
    memory, each_bytes = run.header.provenance.memory_bytes, None if weighed is None else weighed.each_bytes
    return Standing(
        address=address,
        declared=measured.declared.get(address),
        observed=measured.observed.get(address),
        start_s=small.start_s,
        action_s=small.dispatch_s,
        estimated=small.estimated,
        slowdown=_slowdown(large),
        reference=small.reference,
        work_s=large.work_s.value if large.work_s is not None else None,
        reset_s=reset_s,
        reset_by=reset_by,
        cleanup_s=small.cleanup_s,
        weighed=weighed,
        fit_in_host=None if each_bytes is None else memory / each_bytes,
        versions=run.header.provenance.versions.get(address, {}),
        run=run.header.id,
        blocks=0 if small.blocks is None else small.blocks.n,
        n=small.n,
        elsewhere=elsewhere,
    )


def _slowdown(row: Row) -> Estimate | None:
    if row.reference or not row.paired or row.blocks is None or row.work_s is None or row.work_s.value < LEAST_WORK_S:
        return None
    return row.blocks.estimate(lambda sums: sums["slowdown"] / sums["work"], PLAIN)


def _reset(run: Run, address: str) -> tuple[Estimate | None, str]:
    """By a snapshot where there is one; else by a fork, whose start and cleanup it is. A new sandbox is the start's column."""
    own = [row for row in run.rows if row.address == address and row.n and row.cell.concurrency == 1]
    for row in own:
        if row.cell.reset == "snapshot" and row.reset_s is not None:
            return row.reset_s, "snapshot"
    for row in own:
        if row.cell.reset == "fork" and row.blocks is not None:
            return row.blocks.estimate(lambda sums: sums["fixed"] / sums["rollouts"]), "fork"
    return None, ""
