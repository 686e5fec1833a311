"""Blocks: every cell once, in seeded random order; a run is a whole number of them."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from excise.clock import now_ns
from excise.meter.records import Cell, Plan, Trial
from excise.meter.rounds import Rounds, Slot

BLOCKS_AT_LEAST = 1


class Bounded(Protocol):
    """What of a plan says how long it is."""

    @property
    def blocks(self) -> int | None: ...
    @property
    def budget_s(self) -> float | None: ...
    @property
    def warmup_blocks(self) -> int: ...


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
    cell: Cell | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that goes on has behind it."""

    next_block: int = 0
    """No number is given twice: a block that was cut off stays as it is, and out of the table."""
    measured: int = 0
    """Whole blocks, warm-ups not counted."""
    elapsed_s: float = 0.0


NOTHING = Done()


async def run_blocks(
    plan: Plan,
    rounds: Rounds,
    keep: Callable[[Trial], None],
    tell: Callable[[Progress], None],
    done: Done = NOTHING,
    *,
    control: bool = False,
) -> None:
    """Run `plan` to its end; `keep` gets every trial when it is over, `tell` hears before each. Each beginning warms up."""
    begun_ns = now_ns()
    took_s: list[float] = []

    def elapsed_s() -> float:
        return done.elapsed_s + (now_ns() - begun_ns) / 1e9

    for number in itertools.count():
        since_s = elapsed_s()
        if not room(plan, number, since_s, took_s, done.measured):
            return
        block = done.next_block + number
        loud: list[Slot] = []
        for position, cell in enumerate(order(plan, block)):
            slot = Slot(block, position, cell, warmup=number < plan.warmup_blocks, control=control)
            tell(_progress(plan, slot, elapsed_s(), took_s, done))
            for trial in await rounds.run(slot):
                keep(trial)
                if trial.noisy and trial.lane == 0 and not slot.warmup:  # nobody reads a warm-up
                    loud.append(slot._replace(rerun=True))
        for slot in loud if plan.rerun_noisy else ():
            for trial in await rounds.run(slot):
                keep(trial)
        took_s.append(elapsed_s() - since_s)


def order(plan: Plan, block: int) -> list[Cell]:
    """The cells of one block, shuffled by seed and block alone: a resumed run goes on as it would have.

    Cold cells are last: each of them empties the page cache for all, and after it everybody else must be warmed again.
    """
    shuffler = random.Random(f"{plan.seed}:{block}")  # noqa: S311 - an order, not a secret
    return sorted(shuffler.sample(plan.cells, len(plan.cells)), key=lambda cell: cell.state == "cold")


def room(plan: Bounded, number: int, elapsed_s: float, took_s: Sequence[float], measured: int = 0) -> bool:
    """Whether another block fits. Warm-ups and one measured block always run: less would be no result."""
    done = measured + max(0, number - plan.warmup_blocks)
    if plan.blocks is not None and done >= plan.blocks:
        return False
    if done < BLOCKS_AT_LEAST:
        return True
    return plan.budget_s is None or elapsed_s + block_s(plan, took_s) <= plan.budget_s


def block_s(plan: Bounded, took_s: Sequence[float]) -> float:
    """What the next block will take: as the measured ones did, or the warm-ups while there are none."""
    known = took_s[plan.warmup_blocks :] or took_s
    return sum(known) / len(known) if known else 0.0


def _progress(plan: Plan, slot: Slot, elapsed_s: float, took_s: Sequence[float], done: Done) -> Progress:
    blocks = None if plan.blocks is None else plan.blocks - done.measured + plan.warmup_blocks + done.next_block
    left_s = None if plan.budget_s is None else max(0.0, plan.budget_s - elapsed_s)
    if took_s and blocks is not None:
        by_blocks_s = block_s(plan, took_s) * (blocks - slot.block - slot.position / len(plan.cells))
        left_s = by_blocks_s if left_s is None else min(left_s, by_blocks_s)
    return Progress(
        block=slot.block,
        blocks=blocks,
        warmup=slot.warmup,
        position=slot.position,
        cells=len(plan.cells),
        address=slot.cell.address,
        elapsed_s=elapsed_s,
        left_s=left_s,
        cell=slot.cell,
    )
