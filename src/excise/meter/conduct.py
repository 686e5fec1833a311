"""A run from request to results: the plan, the header, then blocks until the budget is used up."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.meter.admission import Field, calibrate
from excise.meter.blocks import Bench, Progress, run_blocks
from excise.meter.privacy import without_home
from excise.meter.provenance import provenance
from excise.meter.records import Cell, Header, Plan
from excise.meter.results import Results, Writer, default_path, load, new_id, refuse_used
from excise.workloads.workload import Workload

DEFAULT_BUDGET_S = 60.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants measured, beside the addresses."""

    workload: Workload
    image: str = "host"
    seed: int = 0
    blocks: int | None = None
    budget_s: float | None = None
    """None: no limit if `blocks` are given, and DEFAULT_BUDGET_S if they are not."""
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 1:
            raise SpecError(f"blocks={self.blocks}: a run has at least one block")
        if self.budget_s is not None and not self.budget_s > 0:
            raise SpecError(f"a budget of {self.budget_s:g} s leaves no time: give a number of seconds above 0")
        if self.out is not None:
            refuse_used(self.out)


async def conduct(request: Request, field: Field, tell: Callable[[Progress], None], image_digest: str | None = None) -> Results:
    """Measure those who were admitted, and read back what was written: what is reported is what is on the disk."""
    admitted = field.admitted
    if not admitted:
        reasons = "; ".join(f"{one.address}: {one.reason}" for one in field.skipped)
        raise SubstrateError(f"no substrate can run here ({reasons}); `excise doctor` says what would enable one")
    run_id = new_id()
    path = request.out if request.out is not None else default_path(run_id)
    plan = Plan(
        cells=tuple(Cell(address=address, workload=request.workload.name) for address in admitted),
        reference=field.reference,
        image=without_home(request.image),  # a tar's path may begin with ~
        seed=request.seed,
        blocks=request.blocks,
        budget_s=DEFAULT_BUDGET_S if request.budget_s is None and request.blocks is None else request.budget_s,
    )
    versions = {address: one.capabilities.versions for address, one in admitted.items()}
    header = Header(
        id=run_id,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        plan=plan,
        provenance=provenance(path.parent, versions, image_digest),
        skipped=field.skipped,
        harness=await calibrate(request.workload, request.image),
    )
    bench = Bench(
        substrates={address: one.substrate for address, one in admitted.items()},
        workloads={request.workload.name: request.workload},
        nulls=field.nulls(),
    )
    with Writer(path, header) as writer:
        await run_blocks(plan, bench, run_id, writer.add, tell)
    return load(path)
