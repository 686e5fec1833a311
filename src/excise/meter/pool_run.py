"""A run of claims from plan to results: blocks of cells in seeded random order, each cell a whole life of its pool."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from excise.errors import SubstrateError
from excise.meter import cold
from excise.meter.admission import Admitted
from excise.meter.blocks import NOTHING, Done, Progress, block_s, room
from excise.meter.booth import Booth
from excise.meter.pool_records import PoolCell, PoolHeader, PoolPlan, PoolTrial
from excise.meter.pool_session import Slot, run_session
from excise.meter.provenance import provenance
from excise.meter.records import Skipped
from excise.meter.results import Writer, load_pools, new_id
from excise.meter.resume import require_same

Read = tuple[PoolHeader, tuple[PoolTrial, ...]]


def header_of(plan: PoolPlan, seen: Mapping[str, Admitted | Skipped], path: Path, image_digest: str | None) -> PoolHeader:
    """What run.json says, with the cells that can run here; if there is none, why."""
    admitted = {address: one for address, one in seen.items() if isinstance(one, Admitted)}
    skipped = [one for one in seen.values() if isinstance(one, Skipped)]
    runnable: list[PoolCell] = []
    for cell in plan.cells:
        if cell.source in admitted and cell.address in admitted:
            reason = refusal(cell, admitted[cell.source])
            if reason is None:
                runnable.append(cell)
            else:
                skipped.append(Skipped(f"{cell.address}, {cell.state}", reason))
    if not runnable:
        reasons = "; ".join(f"{one.address}: {one.reason}" for one in skipped)
        raise SubstrateError(f"no cell of the plan can run here ({reasons}); `excise doctor` says what would enable one")
    return PoolHeader(
        id=new_id(),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        plan=msgspec.structs.replace(plan, cells=tuple(runnable)),
        provenance=provenance(path.parent, {a: one.capabilities for a, one in admitted.items()}, image_digest),
        skipped=tuple(dict.fromkeys(skipped)),
    )


def refusal(cell: PoolCell, source: Admitted) -> str | None:
    """Why `cell` cannot run over this source, or None."""
    if (cell.kept or cell.state in ("repo-warm", "deps-warm")) and not source.capabilities.keeps_steps:
        return f"{cell.source} keeps nothing of a spec's steps"
    return cold.refusal() if cell.state == "cold" else None


async def conduct_pools(
    header: PoolHeader, path: Path, booth: Booth, tell: Callable[[Progress], None], *, done: Done = NOTHING
) -> Read:
    """Measure, and read back what was written: what is reported is what is on the disk."""
    with Writer(path, header, go_on=done is not NOTHING) as writer:
        await _run(header, booth, writer.add, tell, done)
    return load_pools(path)


async def _run(
    header: PoolHeader, booth: Booth, keep: Callable[[PoolTrial], None], tell: Callable[[Progress], None], done: Done
) -> None:
    plan, took_s, begun_s = header.plan, list[float](), time.monotonic()

    def elapsed_s() -> float:
        return done.elapsed_s + time.monotonic() - begun_s

    for number in itertools.count():
        since_s = elapsed_s()
        if not room(plan, number, since_s, took_s, done.measured):
            return
        for position, cell in enumerate(order(plan, done.next_block + number)):
            slot = Slot(done.next_block + number, position, cell, warmup=number < plan.warmup_blocks)
            tell(_progress(plan, slot, elapsed_s(), took_s))
            keep(await run_session(booth, plan, header.id, slot))
        took_s.append(elapsed_s() - since_s)


def order(plan: PoolPlan, block: int) -> list[PoolCell]:
    """The cells of one block, shuffled by seed and block alone.

    Pools that differ in how they match alone follow each other, for they are what is compared. Cold cells are last: each of
    them empties everybody's page cache.
    """
    shuffler = random.Random(f"{plan.seed}:{block}")  # noqa: S311 - an order, not a secret
    groups: dict[tuple[PoolCell, str, int | None], list[PoolCell]] = {}
    for cell in shuffler.sample(plan.cells, len(plan.cells)):
        groups.setdefault((cell.beside(), cell.state + cell.depth, cell.places), []).append(cell)
    return sorted((cell for group in groups.values() for cell in group), key=lambda cell: cell.state == "cold")


def _progress(plan: PoolPlan, slot: Slot, elapsed_s: float, took_s: list[float]) -> Progress:
    blocks = None if plan.blocks is None else plan.blocks + plan.warmup_blocks
    left_s = None if plan.budget_s is None else max(0.0, plan.budget_s - elapsed_s)
    if took_s and blocks is not None:
        left_s = block_s(plan, took_s) * (blocks - slot.block - slot.position / len(plan.cells))
    return Progress(
        block=slot.block,
        blocks=blocks,
        warmup=slot.warmup,
        position=slot.position,
        cells=len(plan.cells),
        address=slot.cell.address,
        elapsed_s=elapsed_s,
        left_s=left_s,
    )


def whole_blocks(cells: Iterable[PoolCell], trials: Iterable[PoolTrial]) -> tuple[int, ...]:
    """The blocks in which every cell had its trial, failed or not."""
    wanted = set(cells)
    seen: dict[int, set[PoolCell]] = {}
    for trial in trials:
        seen.setdefault(trial.block, set()).add(trial.cell)
    return tuple(sorted(block for block, found in seen.items() if wanted <= found))


def interrupted(path: Path) -> tuple[PoolHeader, Done]:
    """The run in `path` and what it has behind it, if this host and this code may go on with it."""
    header, trials = load_pools(path)
    require_same(path, header.provenance, provenance(path, {}))
    measured = whole_blocks(header.plan.cells, (trial for trial in trials if not trial.warmup))
    elapsed_s = sum(trial.wall_ns for trial in trials) / 1e9
    last = max((trial.block for trial in trials), default=-1)
    return header, Done(next_block=last + 1, measured=len(measured), elapsed_s=elapsed_s)
