"""How long a plan will take, before it runs: from earlier results of this host, or from a rollout or two of each."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.meter.places import Recreate
from excise.meter.records import Cell, Plan, Trial
from excise.meter.results import scan
from excise.meter.rounds import Bench
from excise.meter.trial import Rollout, roll_out
from excise.trace import SETUP, Span
from excise.workloads.t0 import T0

_RUNS = 5
"""How many earlier runs are looked into, the latest first."""
_AROUND_S = 0.05
"""What a trial takes beside its rollout: the quiet window, and asking the sandbox who it is."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's share of a block."""

    cell: Cell
    trial_s: float
    measured: bool
    """From an earlier run; else put together from a rollout of T0 there and of the workload on the reference."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A whole plan."""

    cells: tuple[Expected, ...]
    blocks: int
    """Measured ones."""
    total_s: float

    @property
    def block_s(self) -> float:
        return sum(one.trial_s for one in self.cells)


def earlier(directory: Path, host: str, image: str) -> dict[Cell, float]:
    """Mean seconds a trial took in the latest runs below `directory` on this host and image."""
    if not directory.is_dir():
        return {}
    found: dict[Cell, list[float]] = {}
    for path in sorted((one for one in directory.iterdir() if one.is_dir()), reverse=True)[:_RUNS]:
        try:
            header, trials = scan(path)
            if header.provenance.host != host or header.plan.image != image:
                continue
            for cell, took_s in _waves_s(trials).items():
                found.setdefault(cell, []).extend(took_s)
        except SpecError:
            continue  # Somebody else's directory, or a run of single operations.
    return {cell: sum(of) / len(of) for cell, of in found.items()}


def _waves_s(trials: Iterable[Trial]) -> dict[Cell, list[float]]:
    """How long each measured wave took, its quiet window included; a wave is over when its last lane is."""
    ends_s: dict[tuple[Cell, int, bool], float] = {}
    for trial in trials:
        if not trial.warmup and not trial.control and trial.failure is None:
            wave = (trial.cell, trial.block, trial.rerun)
            ends_s[wave] = max(ends_s.get(wave, 0.0), (trial.ended_ns + trial.quiet.window_ns) / 1e9)
    found: dict[Cell, list[float]] = {}
    for (cell, _, _), took_s in ends_s.items():
        found.setdefault(cell, []).append(took_s)
    return found


async def forecast(plan: Plan, bench: Bench, known: Mapping[Cell, float]) -> Forecast:
    """What `plan` will take. Cells that nobody measured yet cost a short rollout here and now."""
    unknown = [cell for cell in plan.cells if cell not in known]
    minimal = {address: await _t0(bench, address) for address in dict.fromkeys(cell.address for cell in unknown)}
    witness = plan.reference or plan.cells[0].address
    work = {name: await _acting_s(bench, witness, name) for name in dict.fromkeys(cell.workload for cell in unknown)}
    cells = tuple(
        Expected(cell=cell, trial_s=known[cell], measured=True)
        if cell in known
        else Expected(cell=cell, trial_s=_composed_s(cell, minimal, work, bench), measured=False)
        for cell in plan.cells
    )
    block_s = sum(one.trial_s for one in cells)
    blocks = plan.blocks
    if plan.budget_s is not None:
        fitting = max(1, int(plan.budget_s / block_s) - plan.warmup_blocks)
        blocks = fitting if blocks is None else min(blocks, fitting)
    assert blocks is not None  # a plan has the one or the other
    return Forecast(cells=cells, blocks=blocks, total_s=(blocks + plan.warmup_blocks) * block_s)


class _Minimal(msgspec.Struct, frozen=True):
    around_s: float
    action_s: float


async def _t0(bench: Bench, address: str) -> _Minimal:
    """What an address takes around a rollout, and for an action of hardly any work."""
    seen = await roll_out(Recreate(bench.substrates[address], T0().spec(bench.image)), T0())
    acting_s = _sum_s(seen.spans, "action")
    actions = max(1, sum(one.name == "action" for one in seen.spans))
    return _Minimal(seen.wall_ns / 1e9 - acting_s, acting_s / actions)


async def _acting_s(bench: Bench, witness: str, workload: str) -> Rollout:
    what = bench.workloads[workload]
    return await roll_out(Recreate(bench.substrates[witness], what.spec(bench.image)), what)


def _composed_s(cell: Cell, minimal: Mapping[str, _Minimal], work: Mapping[str, Rollout], bench: Bench) -> float:
    here, there = minimal[cell.address], work[cell.workload]
    actions = len(bench.workloads[cell.workload].turns(""))
    nulls = 2 if cell.address in bench.nulls and cell.concurrency == 1 else 1
    thinking_s = max(0.0, cell.think_s) * (actions - 1)
    setup_s = _sum_s(there.spans, SETUP) if cell.reset == "recreate" else 0.0
    acting_s = _sum_s(there.spans, "action") + nulls * actions * here.action_s
    # As if one core had to do for all lanes: a plan that ends early is no surprise.
    rollouts_s = (here.around_s + setup_s + acting_s) * cell.concurrency
    arriving_s = cell.concurrency / cell.arrivals_per_s if cell.arrivals_per_s else 0.0
    return _AROUND_S + max(rollouts_s, arriving_s) + thinking_s


def _sum_s(spans: Sequence[Span], name: str) -> float:
    return sum(one.duration_ns for one in spans if one.name == name) / 1e9
