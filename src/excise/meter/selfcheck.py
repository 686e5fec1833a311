"""What the instrument is tried on: the same substrate twice, and once more with a known delay in every action."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from excise.action import Action, Observation
from excise.errors import SubstrateError
from excise.meter.blocks import order
from excise.meter.places import Recreate
from excise.meter.records import Cell, Plan
from excise.meter.trial import roll_out
from excise.spec import Spec
from excise.substrate import Handle, Snapshot, Substrate
from excise.workloads.workload import Workload

ONCE, AGAIN, DELAYED = "once", "again", "delayed"
DELAY_S = 0.010
BLOCKS = 60


class DelayedSubstrate:
    """Another substrate, each of whose actions takes `delay_s` longer."""

    def __init__(self, substrate: Substrate, delay_s: float) -> None:
        self._substrate = substrate
        self._delay_s = delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._substrate, name)

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> Handle:
        made = await self._substrate.create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)
        return cast("Handle", _DelayedHandle(made, self._delay_s))


class _DelayedHandle:
    def __init__(self, handle: Handle, delay_s: float) -> None:
        self._handle = handle
        self._delay_s = delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    async def run(self, action: Action) -> Observation:
        await asyncio.sleep(self._delay_s)  # this is what is measured
        return await self._handle.run(action)


async def time_copies(
    substrate: Substrate, workload: Workload, image: str = "host", blocks: int = BLOCKS, delay_s: float = DELAY_S
) -> dict[str, list[float]]:
    """Seconds of a rollout of each of the three, a value a block, in the order that any run of these cells would have."""
    delayed = cast("Substrate", DelayedSubstrate(substrate, delay_s))
    copies = {ONCE: substrate, AGAIN: substrate, DELAYED: delayed}
    plan = Plan(cells=tuple(Cell(address=name, workload=workload.name) for name in copies), reference=None)
    took_s: dict[str, list[float]] = {name: [] for name in copies}
    for block in range(plan.warmup_blocks + blocks):
        for cell in order(plan, block):
            seen = await roll_out(Recreate(copies[cell.address], workload.spec(image)), workload)
            if seen.failure is not None:
                raise SubstrateError(f"the meter cannot be checked, a rollout failed: {seen.failure}")
            if block >= plan.warmup_blocks:
                took_s[cell.address].append((seen.wall_ns - seen.apart_ns) / 1e9)
    return took_s
