"""From a plan of claims to a run: the repositories built, an image that has them, substrates tried."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.measuring import admitted, digest, floor_of
from excise.meter.admission import Admitted
from excise.meter.blocks import Progress
from excise.meter.booth import Booth
from excise.meter.pool_forecast import PoolForecast, forecast
from excise.meter.pool_records import PoolHeader, PoolPlan
from excise.meter.pool_run import Read, conduct_pools, header_of, interrupted
from excise.meter.records import Skipped
from excise.meter.results import default_path, new_id, refuse_used
from excise.plans import PoolPlanFile
from excise.registry import make
from excise.spec import Spec
from excise.storage.home import cache_dir
from excise.storage.image import resolve
from excise.workloads.mixed import Mixed


async def measure_pools(
    plan: PoolPlanFile,
    only: Sequence[str] = (),
    *,
    name: str = "",
    out: Path | None = None,
    tell: Callable[[Progress], None],
) -> Read:
    """Run `plan` on the sources in `only`, or on all of its own."""
    path = out if out is not None else default_path(new_id())
    refuse_used(path)
    async with _ready(plan, only, name=name, path=path) as (header, booth):
        return await conduct_pools(header, path, booth, tell)


async def resume_pools(path: Path, *, tell: Callable[[Progress], None]) -> Read:
    """Go on with the run in `path`."""
    header, done = interrupted(path)
    booth = await _booth(header.plan.image, _repositories(header.plan.workload))
    async with AsyncExitStack() as closing:
        for address in dict.fromkeys(cell.address for cell in header.plan.cells):
            one = await admitted(address, Spec(image=booth.image), closing, named=False)
            if isinstance(one, Skipped):
                raise SpecError(f"{address} is in {path} and cannot run now ({one.reason}): enable it, or begin a new run")
    return await conduct_pools(header, path, booth, tell, done=done)


class PoolDryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do."""

    plan: PoolPlan
    skipped: tuple[Skipped, ...]
    forecast: PoolForecast


async def dry_run_pools(plan: PoolPlanFile, only: Sequence[str] = ()) -> PoolDryRun:
    """Which cells would run, and how long; nothing is kept."""
    async with _ready(plan, only, name="", path=Path("results")) as (header, booth):
        return PoolDryRun(plan=header.plan, skipped=header.skipped, forecast=await forecast(header.plan, booth))


@asynccontextmanager
async def _ready(plan: PoolPlanFile, only: Sequence[str], *, name: str, path: Path) -> AsyncGenerator[tuple[PoolHeader, Booth]]:
    """The cells that run here. Each address is tried once, and closed: every cell has a substrate of its own."""
    booth = await _booth(plan.image, plan.repositories)
    wanted = PoolPlan(
        cells=plan.narrowed(only).cells(len(booth.mixed.tasks)),
        image=plan.image,
        workload=booth.mixed.name,
        seed=plan.seed,
        blocks=plan.blocks,
        budget_s=plan.budget_s,
        warmup_blocks=plan.warmup_blocks,
        name=name,
    )
    seen: dict[str, Admitted | Skipped] = {}
    async with AsyncExitStack() as closing:
        for address in dict.fromkeys(cell.address for cell in wanted.cells):
            seen[address] = await admitted(address, Spec(image=booth.image), closing, named=False)
        for source in dict.fromkeys(cell.source for cell in wanted.cells):
            if source not in seen:
                seen[source] = await admitted(source, Spec(image=booth.image), closing, named=False)
    yield header_of(wanted, seen, path, await digest(booth.image)), booth


async def _booth(image: str, repositories: int) -> Booth:
    mixed = Mixed(repositories)
    await asyncio.to_thread(mixed.build, cache_dir())
    base = await resolve(image)
    if base.tar is None:
        raise SpecError(f"image {image!r} is not kept as a tar, which the repositories are added to: use excise/base")
    made = await asyncio.to_thread(mixed.image_over, base.tar, base.digest, cache_dir())
    return Booth(connect=make, mixed=mixed, image=str(made), floor=await floor_of(str(made), "echo"))


def _repositories(workload: str) -> int:
    _, _, number = workload.partition("=")
    return int(number) if number else Mixed().repositories
