"""Every way to a rollout that was measured, and what was not: nothing is guessed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from excise.economics.demand import Demand, HostPrices
from excise.economics.evidence import Evidence, Samples
from excise.economics.measured import Measured
from excise.economics.model import Crowd, Seconds, Unmeasured, Way
from excise.economics.pools import pool_way
from excise.errors import SpecError
from excise.meter.records import Cell
from excise.stats.jackknife import Blocks, Sums, joined
from excise.stats.rows import Row
from excise.stats.run import Run

_STATES = {"git": "git", "snapshot": "snapshot", "fork": "fork", "recreate": "fresh"}
_LASTING = ("snapshot", "git")
"""One sandbox serves many rollouts: it is made once for all of them."""


@dataclass
class Gathering:
    """The columns that one way's numbers rest on, from as many runs as it takes."""

    columns: dict[str, dict[str, Blocks]] = field(default_factory=dict[str, dict[str, Blocks]])

    def add(self, run: str, prefix: str, blocks: Blocks) -> None:
        self.columns.setdefault(run, {})[prefix] = blocks

    def evidence(self) -> Evidence | None:
        """None where a run's rows have no block in common."""
        parts = {run: joined(own) for run, own in self.columns.items()}
        return Evidence({run: one for run, one in parts.items() if one is not None}) if all(parts.values()) else None


@dataclass(frozen=True)
class Found:
    ways: tuple[Way, ...]
    unmeasured: tuple[Unmeasured, ...]
    workload: str
    base: str
    """The run whose seconds the others' are brought to, by the reference that both have."""


def find(measured: Measured, demand: Demand, prices: HostPrices, workload: str | None = None) -> Found:
    """Ways on one workload. None named: the one that most rows are of; of equals the one with the most work."""
    chosen = workload or _commonest(measured)
    here = [(run, row) for run, row in measured.rows() if row.cell.workload == chosen]
    if not here:
        known = ", ".join(dict.fromkeys(row.cell.workload for _, row in measured.rows()))
        raise SpecError(f"nothing was measured on {chosen!r}; the results have: {known}")
    base = max(measured.runs, key=lambda run: (sum(own is run for own, _ in here), run.header.started))
    unmeasured: list[Unmeasured] = []
    ways: list[Way] = []
    for run, row in _newest_of_each(here, base):
        made = _way(measured, demand, run, row, base)
        if isinstance(made, Unmeasured):
            unmeasured.append(made)
        else:
            ways.append(made)
            if made.state == "fresh":
                pooled = pool_way(measured, demand, prices, made)
                if isinstance(pooled, Way):
                    ways.append(pooled)
                else:
                    unmeasured.append(pooled)
    return Found(tuple(ways), tuple(unmeasured), chosen, base.header.id)


def _commonest(measured: Measured) -> str:
    by: dict[str, list[Row]] = {}
    for _, row in measured.rows():
        if _alone(row.cell) and not row.reference:
            by.setdefault(row.cell.workload, []).append(row)
    if not by:
        raise SpecError("the results have no row of one rollout at a time: measure some with `excise measure --plan isolation`")

    def weight(name: str) -> tuple[int, float, str]:
        rows = by[name]
        work_s = max((row.work_s.value * row.actions for row in rows if row.work_s is not None), default=0.0)
        return len({(row.cell.address, row.cell.reset, row.cell.state) for row in rows}), work_s, name

    return max(by, key=weight)


def _alone(cell: Cell) -> bool:
    """A choice of a user's, with nobody else about: conditions of the host (a cold cache, a registry) are no choice."""
    return cell.concurrency == 1 and cell.shell == "exec" and not cell.think_s and cell.state in ("warm", "repo-warm")


def _newest_of_each(rows: Iterable[tuple[Run, Row]], base: Run) -> list[tuple[Run, Row]]:
    """Each cell once: from the base run if it is there, else from the newest that has it."""
    found: dict[Cell, tuple[Run, Row]] = {}
    for run, row in rows:
        if _alone(row.cell) and (row.cell not in found or (run is base and found[row.cell][0] is not base)):
            found[row.cell] = (run, row)
    return list(found.values())


def _way(measured: Measured, demand: Demand, run: Run, row: Row, base: Run) -> Way | Unmeasured:
    state = "kept" if row.cell.state == "repo-warm" else _STATES[row.cell.reset]
    name = f"{row.address}, {state}"
    if row.blocks is None or not row.paired:
        return Unmeasured(name=name, reason="no reference ran beside it, so its work is not told from its tax")
    gathered, notes = Gathering(), list[str]()
    own_run = run.header.id
    gathered.add(own_run, "own.", row.blocks)
    made_share = 0.0
    if state in (*_LASTING, "fork"):
        fresh = _sibling(run, row, reset="recreate", state="warm")
        if fresh is None or fresh.blocks is None:
            return Unmeasured(name=name, reason=f"making the sandbox that a {state} begins with was not measured beside it")
        gathered.add(own_run, "made.", fresh.blocks)
        made_share = demand.parallel if state in _LASTING else 1.0
    scaled = run is not base
    if scaled:
        mine, theirs = run.reference_row(row), _same_reference(base, run, row)
        if mine is None or mine.blocks is None or theirs is None or theirs.blocks is None:
            return Unmeasured(
                name=name, reason="its run has no reference in common with the others, so times cannot be brought together"
            )
        gathered.add(own_run, "ref.", mine.blocks)
        gathered.add(base.header.id, "ref.", theirs.blocks)
        notes.append("from another run: its times are brought to the others' by the reference that both have")
    crowd = _crowd(measured, demand, row, gathered)
    if isinstance(crowd, Unmeasured):
        return crowd
    if crowd is not None and crowd.prefixes[-1][0] < demand.parallel:
        notes.append(f"at once at most {crowd.prefixes[-1][0]} were measured, not {demand.parallel}")
    evidence = gathered.evidence()
    if evidence is None:
        return Unmeasured(name=name, reason="the rows that it rests on have no block in common")
    failing = _failing(row)

    def seconds(samples: Samples, demand: Demand) -> Seconds:
        sums, base_run = samples[own_run], base.header.id
        scale = _action(samples[base_run], "ref.") / _action(sums, "ref.") if scaled else 1.0
        crowded, acted = (1.0, 1.0) if crowd is None else crowd.factors(samples)
        actions, own_actions = demand.actions, sums["own.actions"]
        start_s = sums["own.fixed"] / sums["own.rollouts"]
        once_s = made_share * sums["made.fixed"] / sums["made.rollouts"] / demand.rollouts if made_share else 0.0
        each_s = sums["own.work"] / own_actions
        work_s = actions * each_s * scale if demand.work_s is None else demand.work_s
        done = Seconds(
            starts_s=scale * crowded * (start_s * demand.starts + once_s),
            dispatch_s=scale * acted * actions * (sums["own.dispatch"] + sums["own.unattributed"]) / own_actions,
            slowdown_s=work_s * sums["own.slowdown"] / sums["own.work"],
            work_s=work_s,
            think_s=actions * demand.think_s,
        )
        return done if not failing else msgspec.structs.replace(done, failed_s=failing * done.occupied_s)

    return Way(
        address=row.address,
        state=state,
        workload=row.cell.workload,
        declared=measured.declared.get(row.address),
        evidence=evidence,
        seconds=seconds,
        blocks=row.blocks.n,
        n=row.n,
        notes=tuple(notes),
    )


def _action(sums: Sums, prefix: str) -> float:
    return sums[prefix + "acting"] / sums[prefix + "actions"]


def _failing(row: Row) -> float:
    """Failed rollouts for each that succeeds, in lengths of one that succeeds."""
    if row.success is None or row.failed_s is None or row.total_s is None or row.success.value <= 0:
        return 0.0
    rate = 1 - row.success.value
    return rate / (1 - rate) * row.failed_s / row.total_s.value


def _sibling(run: Run, row: Row, **factors: str) -> Row | None:
    """The row of the same run that differs from `row` in these factors alone."""
    wanted = msgspec.structs.replace(row.cell, **factors)
    return next((one for one in run.rows if one.cell == wanted and one.blocks is not None), None)


def _same_reference(base: Run, run: Run, row: Row) -> Row | None:
    """The base run's row of the reference that `row`'s work was measured on, on the same workload."""
    if base.reference != run.reference:
        return None
    same = (one for one in base.rows if one.reference and one.cell.workload == row.cell.workload)
    return next((one for one in same if one.blocks is not None), None)


def _crowd(measured: Measured, demand: Demand, row: Row, gathered: Gathering) -> Crowd | Unmeasured | None:
    """How its starts and actions stretch with others at once; None where one runs at a time."""
    if demand.parallel == 1:
        return None
    best: tuple[Run, Sequence[Row]] | None = None
    for run in measured.runs:
        for workload in dict.fromkeys((row.cell.workload, *(one.cell.workload for one in run.rows))):
            ladder = _at_once(run, row.address, workload)
            if len(ladder) > 1 and (best is None or len(ladder) > len(best[1])):
                best = (run, ladder)
    if best is None:
        return Unmeasured(
            name=f"{row.address}, {demand.parallel} at once",
            reason="it was measured with one rollout at a time only: a plan with `concurrencies`, as `isolation`, has more",
        )
    run, ladder = best
    for one in ladder:
        assert one.blocks is not None
        gathered.add(run.header.id, f"crowd{one.cell.concurrency}.", one.blocks)
    numbers = tuple((one.cell.concurrency, f"crowd{one.cell.concurrency}.") for one in ladder)
    return Crowd(demand.parallel, run.header.id, numbers)


def _at_once(run: Run, address: str, workload: str) -> list[Row]:
    """Plain rows of one address, by how many ran at once, 1 among them."""
    found = {
        row.cell.concurrency: row
        for row in run.rows
        if row.blocks is not None and row.cell == Cell(address=address, workload=workload, concurrency=row.cell.concurrency)
    }
    return [found[number] for number in sorted(found)] if 1 in found else []
