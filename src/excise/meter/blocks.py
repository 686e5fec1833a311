"""Blocks: every cell once, in seeded random order; a run is a whole number of them."""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from excise.clock import now_ns
from excise.meter.records import Cell, Plan, Trial
from excise.meter.trial import roll_out, watch
from excise.substrate import Substrate
from excise.workloads.workload import Workload

BLOCKS_AT_LEAST = 1


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is, told before every trial."""

    block: int
    """From 0, warm-ups included."""
    blocks: int | None
    """How many there will be; None while nobody can tell."""
    warmup: bool
    position: int
    cells: int
    address: str
    elapsed_s: float
    left_s: float | None


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan's names stand for here. `nulls`: the addresses beside whose actions null actions run."""

    substrates: Mapping[str, Substrate]
    workloads: Mapping[str, Workload]
    nulls: frozenset[str]


class Slot(NamedTuple):
    """One cell's place in a run."""

    block: int
    position: int
    cell: Cell


async def run_blocks(
    plan: Plan, bench: Bench, run_id: str, keep: Callable[[Trial], None], tell: Callable[[Progress], None]
) -> None:
    """Run `plan` to its end; `keep` gets every trial when it is over, `tell` hears before each."""
    begun_ns = now_ns()
    took_s: list[float] = []
    for block in itertools.count():
        elapsed_s = (now_ns() - begun_ns) / 1e9
        if not room(plan, block, elapsed_s, took_s):
            return
        for position, cell in enumerate(order(plan, block)):
            slot = Slot(block, position, cell)
            tell(_progress(plan, slot, (now_ns() - begun_ns) / 1e9, took_s))
            keep(await _trial(plan, bench, run_id, slot))
        took_s.append((now_ns() - begun_ns) / 1e9 - elapsed_s)


def order(plan: Plan, block: int) -> list[Cell]:
    """The cells of one block, shuffled by seed and block alone: a resumed run goes on as it would have."""
    shuffler = random.Random(f"{plan.seed}:{block}")  # noqa: S311 - an order, not a secret
    return shuffler.sample(plan.cells, len(plan.cells))


def room(plan: Plan, block: int, elapsed_s: float, took_s: list[float]) -> bool:
    """Whether another block fits. Warm-ups and one measured block always run: less would be no result."""
    measured = block - plan.warmup_blocks
    if measured < BLOCKS_AT_LEAST:
        return True
    if plan.blocks is not None and measured >= plan.blocks:
        return False
    return plan.budget_s is None or elapsed_s + _block_s(plan, took_s) <= plan.budget_s


def _block_s(plan: Plan, took_s: list[float]) -> float:
    """What the next block will take: as the measured ones did, or the warm-ups while there are none."""
    known = took_s[plan.warmup_blocks :] or took_s
    return sum(known) / len(known) if known else 0.0


def _progress(plan: Plan, slot: Slot, elapsed_s: float, took_s: list[float]) -> Progress:
    block, position, cell = slot
    blocks = None if plan.blocks is None else plan.blocks + plan.warmup_blocks
    left_s = None if plan.budget_s is None else max(0.0, plan.budget_s - elapsed_s)
    if took_s and blocks is not None:
        by_blocks_s = _block_s(plan, took_s) * (blocks - block - position / len(plan.cells))
        left_s = by_blocks_s if left_s is None else min(left_s, by_blocks_s)
    return Progress(
        block=block,
        blocks=blocks,
        warmup=block < plan.warmup_blocks,
        position=position,
        cells=len(plan.cells),
        address=cell.address,
        elapsed_s=elapsed_s,
        left_s=left_s,
    )


async def _trial(plan: Plan, bench: Bench, run_id: str, slot: Slot) -> Trial:
    block, position, cell = slot
    quiet = await watch(plan.quiet_s)
    seen = await roll_out(
        bench.substrates[cell.address], bench.workloads[cell.workload], plan.image, nulls=cell.address in bench.nulls
    )
    return Trial(
        run=run_id,
        block=block,
        position=position,
        cell=cell,
        warmup=block < plan.warmup_blocks,
        wall_ns=seen.wall_ns,
        apart_ns=seen.apart_ns,
        cpu_s=seen.cpu_s,
        steal_s=seen.steal_s,
        quiet=quiet,
        failure=seen.failure,
        spans=seen.spans,
    )
