"""From a plan's names to a run: workloads made ready, substrates tried, and what is measured on them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from excise.address import parse
from excise.errors import ExciseError, SpecError
from excise.meter.admission import Admitted, Field, admit
from excise.meter.blocks import Progress
from excise.meter.conduct import Request, bench_of, conduct, runnable
from excise.meter.control import BLOCKS, add_control, refuse_awake
from excise.meter.daemons import awake
from excise.meter.forecast import Forecast, earlier, forecast
from excise.meter.latency import Floor
from excise.meter.latency_records import LatencyHeader, LatencyTrial
from excise.meter.latency_run import conduct_latencies
from excise.meter.privacy import one_line, without_home
from excise.meter.provenance import provenance
from excise.meter.records import Plan, Skipped
from excise.meter.resume import go_on, interrupted
from excise.plans import RolloutPlan, load_latencies
from excise.registry import make, names
from excise.spec import Spec
from excise.stats.run import Run
from excise.storage.fresh import FreshImages
from excise.storage.home import cache_dir
from excise.storage.image import resolve
from excise.substrate import Substrate
from excise.workloads.registry import make as make_workload
from excise.workloads.workload import Workload, hosted, own_image

NOT_BY_DEFAULT = ("fake", "command")
"""Names that are measured only when asked for: one is no substrate of this machine, the other needs a file."""

ADMIT_S = 20.0
"""How long a substrate may take to show that it needs none of the daemons that are still."""

CLOSE_S = 30.0
"""How long a substrate may take to close after a run."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with everything that its names stand for on this machine."""

    request: Request
    field: Field
    image_digest: str | None


async def measure(
    plan: RolloutPlan,
    only: Sequence[str] = (),
    *,
    name: str = "",
    out: Path | None = None,
    tell: Callable[[Progress], None],
) -> Run:
    """Run `plan` on the addresses in `only`, or on all of its own."""
    async with ready(plan, only, name=name, out=out) as found:
        results = await conduct(found.request, found.field, tell, found.image_digest)
    return Run(results)


async def resume(path: Path, *, tell: Callable[[Progress], None]) -> Run:
    """Go on with the run in `path`."""
    before = interrupted(path)
    plan = before.header.plan
    workloads = {name: make_workload(name) for name in dict.fromkeys(cell.workload for cell in plan.cells)}
    async with AsyncExitStack() as closing:
        absent = await _host(workloads.values(), closing)
        for name, reason in absent.items():
            raise SpecError(f"{name} is in {path} and cannot be made ready now ({reason}): enable it, or begin a new run")
        seen = {
            address: await admitted(address, Spec(image=plan.image), closing, named=False)
            for address in dict.fromkeys(cell.address for cell in plan.cells)
        }
        field = Field(seen=seen, reference=plan.reference, fresh=_fresh(plan.image, closing))
        results = await go_on(path, before, field, workloads, tell)
    return Run(results)


async def control(path: Path, *, blocks: int = BLOCKS, tell: Callable[[Progress], None]) -> Run:
    """Add control blocks to the run in `path`: its cells that need no daemon, while every daemon is still."""
    before = interrupted(path)
    refuse_awake(awake())
    plan = before.header.plan
    workloads = {name: make_workload(name) for name in dict.fromkeys(cell.workload for cell in plan.cells)}
    async with AsyncExitStack() as closing:
        for name, reason in (await _host(workloads.values(), closing)).items():
            raise SpecError(f"{name} is in {path} and cannot be made ready now ({reason}): enable it, and run this again")
        seen: dict[str, Admitted | Skipped] = {}
        for address in dict.fromkeys(cell.address for cell in plan.cells):
            seen[address] = await _admitted_soon(address, Spec(image=plan.image), closing)
        field = Field(seen=seen, reference=plan.reference)
        # Asking for a sandbox wakes a daemon that listens on a socket of the init system's.
        refuse_awake(awake())
        results = await add_control(path, before, field, workloads, tell=tell, blocks=blocks)
    return Run(results)


async def _admitted_soon(address: str, spec: Spec, closing: AsyncExitStack) -> Admitted | Skipped:
    """Who needs a daemon that was halted gets no answer, and no refusal either."""
    try:
        async with asyncio.timeout(ADMIT_S):
            return await admitted(address, spec, closing, named=False)
    except TimeoutError:
        return Skipped(address, f"it made no sandbox in {ADMIT_S:g} s without the daemons")


@asynccontextmanager
async def ready(plan: RolloutPlan, only: Sequence[str], *, name: str = "", out: Path | None = None) -> AsyncGenerator[Ready]:
    """Everything `plan` needs, for the length of the block."""
    narrowed = plan.narrowed(only)
    made = {text: make_workload(text) for text in narrowed.texts()}
    here = () if not narrowed.open else [one for one in names() if one not in NOT_BY_DEFAULT]
    image = _image(plan, list(made.values()))
    every = narrowed.cells(here, {text: workload.name for text, workload in made.items()})
    wish = Request(
        cells=every,
        workloads={workload.name: workload for workload in made.values()},
        image=image,
        seed=plan.seed,
        blocks=plan.blocks,
        budget_s=plan.budget_s,
        warmup_blocks=plan.warmup_blocks,
        rerun_noisy=plan.rerun_noisy,
        name=name,
        out=out,
    )
    async with AsyncExitStack() as closing:
        absent = await _host(made.values(), closing)
        request = msgspec.structs.replace(
            wish,
            cells=tuple(cell for cell in every if cell.workload not in absent),
            skipped=tuple(Skipped(cell.address, absent[cell.workload], cell) for cell in every if cell.workload in absent),
        )
        field = await _field(request, plan.reference, [str(parse(text)) for text in only], closing)
        yield Ready(request=request, field=field, image_digest=await digest(image) if field.admitted else None)


def _image(plan: RolloutPlan, workloads: Sequence[Workload]) -> str:
    if plan.image is not None:
        return plan.image
    own = {one for one in map(own_image, workloads) if one is not None}
    if len(own) > 1:
        raise SpecError(
            f"the plan's workloads are for different images ({', '.join(sorted(own))}): name one, or run them apart"
        )
    return own.pop() if own else "host"


async def _host(workloads: Iterable[Workload], closing: AsyncExitStack) -> dict[str, str]:
    """Make workloads ready; by name, why one cannot be. The others go on."""
    absent: dict[str, str] = {}
    for workload in workloads:
        try:
            await closing.enter_async_context(hosted(workload, cache_dir()))
        except (ExciseError, OSError) as error:
            absent[workload.name] = without_home(one_line(error))
    return absent


def references(image: str) -> Sequence[str]:
    """What work is measured on, the first that runs here: timed by the guest, as namespace is; or, without it, by Python."""
    # The host's own programs run bare as well; any other image's need a root of their own.
    return ("chroot+guest", "chroot", "local") if image == "host" else ("chroot+guest", "chroot")


async def _field(request: Request, reference: str | None, named: Sequence[str], closing: AsyncExitStack) -> Field:
    """Who takes part: the plan's addresses, of which those `named` must at least exist, and the reference beside them."""
    floors = [str(parse(reference))] if reference else references(request.image)
    spec = Spec(image=request.image)
    seen: dict[str, Admitted | Skipped] = {}
    for address in dict.fromkeys(cell.address for cell in request.cells):
        seen[address] = await admitted(address, spec, closing, named=address in named)
    floor = None
    for address in floors:
        if address not in seen:
            seen[address] = await admitted(address, spec, closing, named=reference is not None)
        if isinstance(seen[address], Admitted):
            floor = address
            break
    return Field(seen=seen, reference=floor, fresh=_fresh(request.image, closing))


def _fresh(image: str, closing: AsyncExitStack) -> FreshImages:
    found = FreshImages(image)
    closing.push_async_callback(found.close)
    return found


async def admitted(address: str, spec: Spec, closing: AsyncExitStack, *, named: bool) -> Admitted | Skipped:
    """The substrate at `address`, tried; one that was `named` must at least exist."""
    try:
        substrate = make(address)
    except Exception as error:
        if named:
            raise
        return Skipped(address, one_line(error))
    closing.push_async_callback(_close, substrate)
    return await admit(substrate, spec, address)


async def _close(substrate: Substrate) -> None:
    """Results are on the disk by now: a substrate that cannot end must not keep them from their reader."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await substrate.close()
    except TimeoutError:
        logging.getLogger(__name__).warning(
            "%s did not close in %g s and was left; `excise gc` removes what it holds", substrate.address, CLOSE_S
        )


async def digest(image: str) -> str | None:
    """The image's content address. Somebody has made a sandbox from it by now; who cannot tell must not end the run."""
    try:
        return (await resolve(image)).digest
    except ExciseError:
        return None


async def measure_latencies(
    plan: str, only: Sequence[str], *, blocks: int | None = None, out: str | Path | None = None
) -> tuple[LatencyHeader, tuple[LatencyTrial, ...]]:
    """Single operations beside the floor."""
    wanted = load_latencies(plan)
    cells = tuple(cell for cell in wanted.cells if not only or cell.address in only)
    if not cells:
        known = sorted({cell.address for cell in wanted.cells})
        raise SpecError(f"plan {plan!r} has no cell of {', '.join(only)}; it has: {', '.join(known)}")
    wanted = msgspec.structs.replace(wanted, cells=cells, blocks=wanted.blocks if blocks is None else blocks)
    async with AsyncExitStack() as closing:
        seen: dict[str, Admitted | Skipped] = {}
        for address in dict.fromkeys(cell.address for cell in cells):
            seen[address] = await admitted(address, Spec(image=wanted.image), closing, named=False)
        return await conduct_latencies(wanted, seen, await digest(wanted.image), await floor_of(wanted.image, "echo"), out)


async def floor_of(image: str, program: str) -> Floor:
    """The image's own `program`, by where it lies on this machine, with the image's variables."""
    found = await resolve(image)
    for source, target in (*found.binds, (str(found.root), "/")):
        path = Path(source) / Path("/usr/bin").relative_to(target) / program if "/usr/bin".startswith(target) else None
        if path is not None and path.is_file():
            return Floor(str(path), found.env)
    raise SpecError(f"image {image!r} has no /usr/bin/{program}, which the floor is measured with")


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do."""

    plan: Plan
    skipped: tuple[Skipped, ...]
    forecast: Forecast


async def dry_run(plan: RolloutPlan, only: Sequence[str] = (), *, earlier_in: Path = Path("results")) -> DryRun:
    """Who would run which cells, and how long; nothing is kept."""
    async with ready(plan, only) as found:
        request, field = found.request, found.field
        bench = bench_of(field, request.workloads, request.image)
        cells = await runnable(request, field, bench)
        wanted = request.plan(cells.runnable, field.reference)
        known = earlier(earlier_in, provenance(earlier_in, {}).host, wanted.image)
        skipped = (*field.skipped, *request.skipped, *cells.skipped)
        return DryRun(plan=wanted, skipped=skipped, forecast=await forecast(wanted, bench, known))
