"""Control blocks: the cells that need no daemon, once more while every daemon is still.

A daemon that idles beside a trial takes time of the same cores. Whether the table's ratios depend on that is not argued but
measured. Nobody's daemons are stopped by us: who owns them stops them, and we refuse to begin while one is awake.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.meter.admission import Field
from excise.meter.blocks import Done, Progress
from excise.meter.conduct import bench_of, go
from excise.meter.daemons import Daemon
from excise.meter.records import Plan
from excise.meter.results import Results, Writer, load
from excise.meter.resume import Interrupted
from excise.workloads.workload import Workload

BLOCKS = 6
"""Measured ones, where nobody says how many: below it there is no interval."""


def refuse_awake(found: Sequence[Daemon]) -> None:
    """A SpecError while some daemon is awake."""
    if found:
        named = ", ".join(f"{one.name} (process {one.pid})" for one in found)
        pids = " ".join(str(one.pid) for one in found)
        raise SpecError(
            f"a control block runs while every daemon is still, and there is {named}: stop what runs (`systemctl stop "
            f"docker.socket docker containerd`) or halt it (`kill -STOP {pids}`, afterwards `kill -CONT {pids}`), and run this "
            "again"
        )


def control_plan(plan: Plan, addresses: Sequence[str], blocks: int) -> Plan:
    """The cells of `plan` on those addresses, beside its reference."""
    if plan.reference is None or plan.reference not in addresses:
        raise SpecError(
            f"the run's reference ({plan.reference or 'it has none'}) does not run without the daemons: a control block has "
            "nothing to set times beside"
        )
    cells = tuple(cell for cell in plan.cells if cell.address in addresses)
    return msgspec.structs.replace(plan, cells=cells, blocks=blocks, budget_s=None)


async def add_control(
    path: Path,
    before: Interrupted,
    field: Field,
    workloads: Mapping[str, Workload],
    *,
    tell: Callable[[Progress], None],
    blocks: int = BLOCKS,
) -> Results:
    """Run control blocks on who was admitted with the daemons still, and add them to the results in `path`."""
    header = before.header
    plan = control_plan(header.plan, list(field.admitted), blocks)
    with Writer(path, header, go_on=True) as writer:
        bench = bench_of(field, workloads, plan.image)
        done = Done(next_block=before.done.next_block)
        await go(header, bench, writer, tell, done=done, used=before.used, control=plan)
    return load(path)
