"""How long a plan of claims will take: from a claim or two of each source, here and now."""

import os
from collections.abc import Mapping

import msgspec

from excise.clock import now_ns
from excise.meter.booth import Booth
from excise.meter.pool_records import PoolCell, PoolPlan
from excise.sandbox import Sandbox
from excise.spec import Spec

_AROUND_S = 0.3
"""What a cell takes beside its claims: beginning and ending the substrate, the quiet window, the floor."""
_CLOSING = 0.1
"""What a sandbox takes to be closed at the end of its pool, as a part of what making it took."""


class Expected(msgspec.Struct, frozen=True):
    """One cell's share of a block."""

    cell: PoolCell
    trial_s: float


class PoolForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A whole plan."""

    cells: tuple[Expected, ...]
    blocks: int
    total_s: float

    @property
    def block_s(self) -> float:
        return sum(one.trial_s for one in self.cells)


async def forecast(plan: PoolPlan, booth: Booth) -> PoolForecast:
    """As if every claim had to be made from the image: a plan that ends early is no surprise."""
    takes_s = {source: await _claim_s(booth, source) for source in dict.fromkeys(cell.source for cell in plan.cells)}
    cells = tuple(Expected(cell, trial_s(cell, takes_s)) for cell in plan.cells)
    block_s = sum(one.trial_s for one in cells)
    blocks = plan.blocks
    if plan.budget_s is not None:
        fitting = max(1, int(plan.budget_s / block_s) - plan.warmup_blocks)
        blocks = fitting if blocks is None else min(blocks, fitting)
    assert blocks is not None  # a plan has the one or the other
    return PoolForecast(cells=cells, blocks=blocks, total_s=(blocks + plan.warmup_blocks) * block_s)


def trial_s(cell: PoolCell, takes_s: Mapping[str, float]) -> float:
    """What leads in keeps all cores busy; claims that arrive take as long as their arrivals, if they are served in time."""
    one_s = takes_s[cell.source] / (os.cpu_count() or 1)
    before_s = (cell.idle + cell.lead + (cell.claims if cell.kept else 0)) * one_s
    arriving_s = cell.claims / cell.arrivals_per_s if cell.arrivals_per_s else 0.0
    served_s = cell.claims * one_s if cell.claims > 1 else takes_s[cell.source]
    return _AROUND_S + before_s + max(arriving_s, served_s) + (cell.places or 0) * one_s * _CLOSING


async def _claim_s(booth: Booth, source: str) -> float:
    """One claim, after one that is not timed."""
    substrate = booth.connect(source)
    task = booth.mixed.tasks[0]
    begun_ns = 0
    try:
        for spec in (Spec(image=booth.image), task.spec(booth.image).unshared()):
            begun_ns = now_ns()
            async with Sandbox(substrate, spec) as box:
                for turn in task.turns("") if spec.steps else ():
                    await box.run(turn.action)
        return (now_ns() - begun_ns) / 1e9
    finally:
        await substrate.close()
