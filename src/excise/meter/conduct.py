"""A run from request to results: the plan, the header, then blocks until the budget is used up."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.meter.admission import Field, calibrate
from excise.meter.answers import Sameness
from excise.meter.blocks import NOTHING, Done, Progress, run_blocks
from excise.meter.cells import Sorted, sort_out, with_references
from excise.meter.places import Recreate
from excise.meter.privacy import without_home
from excise.meter.provenance import provenance
from excise.meter.records import Cell, Header, Plan, Skipped
from excise.meter.results import Results, Writer, default_path, load, new_id, refuse_used
from excise.meter.rounds import Bench, Rounds
from excise.meter.trial import roll_out
from excise.workloads.workload import Workload

DEFAULT_BUDGET_S = 60.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants measured: cells by address and workload, and how often."""

    cells: tuple[Cell, ...]
    workloads: Mapping[str, Workload]
    """By the names that cells use."""
    image: str = "host"
    seed: int = 0
    blocks: int | None = None
    budget_s: float | None = None
    """None: no limit if `blocks` are given, and DEFAULT_BUDGET_S if they are not."""
    warmup_blocks: int = 1
    rerun_noisy: bool = False
    name: str = ""
    """Of the plan."""
    skipped: tuple[Skipped, ...] = ()
    """What it cannot measure, whoever runs here."""
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 1:
            raise SpecError(f"blocks={self.blocks}: a run has at least one block")
        if self.budget_s is not None and not self.budget_s > 0:
            raise SpecError(f"a budget of {self.budget_s:g} s leaves no time: give a number of seconds above 0")
        if self.out is not None:
            refuse_used(self.out)

    def plan(self, cells: Sequence[Cell], reference: str | None) -> Plan:
        return Plan(
            cells=tuple(cells),
            reference=reference,
            image=without_home(self.image),  # a tar's path may begin with ~
            seed=self.seed,
            blocks=self.blocks,
            budget_s=DEFAULT_BUDGET_S if self.budget_s is None and self.blocks is None else self.budget_s,
            warmup_blocks=self.warmup_blocks,
            rerun_noisy=self.rerun_noisy,
            name=self.name,
        )


async def conduct(request: Request, field: Field, tell: Callable[[Progress], None], image_digest: str | None = None) -> Results:
    """Measure those who were admitted, and read back what was written: what is reported is what is on the disk."""
    bench = bench_of(field, request.workloads, request.image)
    cells = await runnable(request, field, bench)
    run_id = new_id()
    path = request.out if request.out is not None else default_path(run_id)
    witness = field.reference or cells.runnable[0].address
    used = [request.workloads[name] for name in dict.fromkeys(cell.workload for cell in cells.runnable)]
    capabilities = {address: one.capabilities for address, one in field.admitted.items()}
    header = Header(
        id=run_id,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        plan=request.plan(cells.runnable, field.reference),
        provenance=provenance(path.parent, capabilities, image_digest),
        skipped=(*field.skipped, *request.skipped, *cells.skipped),
        harness=await calibrate(used[0], request.image),
        witness=witness,
        answers={workload.name: tuple(await asked(bench, witness, workload.name)) for workload in used},
    )
    with Writer(path, header) as writer:
        await go(header, bench, writer, tell)
    return load(path)


async def go(
    header: Header,
    bench: Bench,
    writer: Writer,
    tell: Callable[[Progress], None],
    *,
    done: Done = NOTHING,
    used: Iterable[str] = (),
    control: Plan | None = None,
) -> None:
    """Blocks until the plan's end. `used`: the sandboxes of what is `done`. `control`: the plan of control blocks instead."""
    witness, plan = header.witness or "", control or header.plan

    async def ask(workload: str) -> Sequence[str]:
        return await asked(bench, witness, workload)

    same = Sameness(header.answers, ask, witness)
    rounds = Rounds(bench, header.id, quiet_s=plan.quiet_s, same=same, seed=plan.seed, used=used)
    try:
        await run_blocks(plan, rounds, writer.add, tell, done, control=control is not None)
    finally:
        await rounds.close()


def bench_of(field: Field, workloads: Mapping[str, Workload], image: str) -> Bench:
    return Bench(
        substrates={address: one.substrate for address, one in field.admitted.items()},
        workloads=workloads,
        nulls=field.nulls(),
        image=image,
        fresh=field.fresh,
    )


async def runnable(request: Request, field: Field, bench: Bench) -> Sorted:
    """The cells that run here; if there is none, why."""
    cells = await sort_out(with_references(request.cells, field.reference), field.admitted, bench)
    if not cells.runnable:
        reasons = "; ".join(f"{one.address}: {one.reason}" for one in (*field.skipped, *request.skipped, *cells.skipped))
        raise SubstrateError(f"no substrate can run here ({reasons}); `excise doctor` says what would enable one")
    return cells


async def asked(bench: Bench, witness: str, workload: str) -> Sequence[str]:
    """What the witness answers now; nothing if it fails."""
    what = bench.workloads[workload]
    return (await roll_out(Recreate(bench.substrates[witness], what.spec(bench.image)), what)).answers
