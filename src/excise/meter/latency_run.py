"""A latency run from plan to results."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from excise.errors import SubstrateError
from excise.meter.admission import Admitted
from excise.meter.latency import Floor, run_latencies
from excise.meter.latency_records import LatencyHeader, LatencyPlan, LatencyTrial
from excise.meter.provenance import provenance
from excise.meter.records import Skipped
from excise.meter.results import Writer, default_path, load_latencies, new_id


async def conduct_latencies(
    plan: LatencyPlan,
    seen: Mapping[str, Admitted | Skipped],
    image_digest: str | None,
    floor: Floor,
    out: str | Path | None,
) -> tuple[LatencyHeader, tuple[LatencyTrial, ...]]:
    """Measure those who were admitted, and read back what was written."""
    admitted = {address: one for address, one in seen.items() if isinstance(one, Admitted)}
    skipped = tuple(one for one in seen.values() if isinstance(one, Skipped))
    if not admitted:
        raise SubstrateError("; ".join(f"{one.address} cannot run here: {one.reason}" for one in skipped))
    run_id = new_id()
    path = Path(out) if out is not None else default_path(run_id)
    header = LatencyHeader(
        id=run_id,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        plan=plan,
        privileged=os.geteuid() == 0,
        provenance=provenance(path.parent, {a: one.capabilities for a, one in admitted.items()}, image_digest),
        skipped=skipped,
    )
    with Writer(path, header) as writer:
        await run_latencies(plan, admitted, floor, run_id, writer.add)
    return load_latencies(path)
