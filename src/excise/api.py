"""The one place where the two halves meet: deliver sandboxes, and measure substrates."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from excise.address import parse
from excise.errors import SpecError
from excise.handles import finish
from excise.registry import make, names
from excise.spec import Spec
from excise.substrate import Substrate
from excise.trace import recording

if TYPE_CHECKING:  # The meter is loaded when something is measured, not when somebody connects.
    from excise.meter.admission import Admitted, Field
    from excise.meter.blocks import Progress
    from excise.meter.conduct import Request
    from excise.meter.latency import Floor
    from excise.meter.latency_records import LatencyHeader, LatencyTrial
    from excise.meter.records import Skipped
    from excise.stats.run import Run
    from excise.stats.shares import Recording

NOT_BY_DEFAULT = ("fake", "command")
"""Names that are measured only when asked for: one is no substrate of this machine, the other needs a file."""

CLOSE_S = 30.0
"""How long a substrate may take to close after a run."""


@asynccontextmanager
async def connect(address: str) -> AsyncGenerator[Substrate]:
    """The substrate at `address`, closed at the end of the block."""
    substrate = make(address)
    try:
        yield substrate
    finally:
        await finish(substrate.close())


@contextmanager
def record() -> Generator["Recording"]:
    """Meter your own loop: every sandbox used in this block lands in the recording.

    `print(trace)` afterwards says "model 71 %, work 17 %, tax 12 %"; `trace.shares()` has the seconds.

    Tasks started in the block are recorded too. Threads are not, because Python starts them in an empty context: hand them
    this one, `pool.submit(contextvars.copy_context().run, rollout, task)`.
    """
    from excise.stats.shares import Recording  # noqa: PLC0415 - see above

    trace = Recording()
    with recording(trace):
        yield trace


def measure(
    *addresses: str,
    budget_s: float | None = None,
    blocks: int | None = None,
    image: str = "host",
    workload: str = "t0",
    reference: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: "Callable[[Progress], None] | None" = None,
) -> "Run":
    """Measure substrates in blocks on this machine; without addresses, all that run here. Blocks until it is done.

    The run ends at `blocks` measured blocks or when `budget_s` is used up, whichever is first, and always after a whole
    block; with neither given it takes about a minute. Results go to the directory `out` (default: results/ and the time).
    `reference` is the substrate that work is measured on; by default `chroot`, or `local` where the image is the host's own
    and chroot cannot run.
    """
    if _in_a_loop():
        raise RuntimeError("excise.measure blocks: inside a running event loop, await excise.api.measure_async instead")
    return asyncio.run(
        measure_async(
            *addresses,
            budget_s=budget_s,
            blocks=blocks,
            image=image,
            workload=workload,
            reference=reference,
            seed=seed,
            out=out,
            progress=progress,
        )
    )


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def measure_async(
    *addresses: str,
    budget_s: float | None = None,
    blocks: int | None = None,
    image: str = "host",
    workload: str = "t0",
    reference: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: "Callable[[Progress], None] | None" = None,
) -> "Run":
    """`measure`, for callers that have an event loop."""
    from excise.meter.conduct import Request, conduct  # noqa: PLC0415 - see above
    from excise.stats.run import Run  # noqa: PLC0415
    from excise.workloads.registry import make as make_workload  # noqa: PLC0415

    request = Request(
        workload=make_workload(workload),
        image=image,
        seed=seed,
        blocks=blocks,
        budget_s=budget_s,
        out=None if out is None else Path(out),
    )
    async with AsyncExitStack() as closing:
        field = await _field(addresses, reference, request, closing)
        digest = await _digest(image) if field.admitted else None
        return Run(await conduct(request, field, progress or _ignore, digest))


async def measure_latencies(
    plan: str, *, blocks: int | None = None, out: str | Path | None = None, only: Sequence[str] = ()
) -> "tuple[LatencyHeader, tuple[LatencyTrial, ...]]":
    """What single operations cost beside the floor, by the plan of that name; `only`: the addresses to measure of it."""
    from excise.meter.latency_run import conduct_latencies  # noqa: PLC0415 - see above
    from excise.plans import load  # noqa: PLC0415

    wanted = load(plan)
    cells = tuple(cell for cell in wanted.cells if not only or cell.address in only)
    if not cells:
        known = sorted({cell.address for cell in wanted.cells})
        raise SpecError(f"plan {plan!r} has no cell of {', '.join(only)}; it has: {', '.join(known)}")
    wanted = msgspec.structs.replace(wanted, cells=cells, blocks=wanted.blocks if blocks is None else blocks)
    async with AsyncExitStack() as closing:
        seen: dict[str, Admitted | Skipped] = {}
        for address in dict.fromkeys(cell.address for cell in cells):
            seen[address] = await _admitted(address, Spec(image=wanted.image), closing, named=False)
        return await conduct_latencies(wanted, seen, await _digest(wanted.image), await _floor(wanted.image, "echo"), out)


async def _floor(image: str, program: str) -> "Floor":
    """The image's own `program`, by where it lies on this machine, with the image's variables."""
    from excise.meter.latency import Floor  # noqa: PLC0415 - as above
    from excise.storage.image import resolve  # noqa: PLC0415

    found = await resolve(image)
    for source, target in (*found.binds, (str(found.root), "/")):
        path = Path(source) / Path("/usr/bin").relative_to(target) / program if "/usr/bin".startswith(target) else None
        if path is not None and path.is_file():
            return Floor(str(path), found.env)
    raise SpecError(f"image {image!r} has no /usr/bin/{program}, which the floor is measured with")


async def _field(addresses: Sequence[str], reference: str | None, request: "Request", closing: AsyncExitStack) -> "Field":
    """Who takes part: what was named, or what is registered; and the reference beside them."""
    from excise.meter.admission import Admitted, Field  # noqa: PLC0415 - see above

    asked = [str(parse(text)) for text in addresses] or [name for name in names() if name not in NOT_BY_DEFAULT]
    floors = [str(parse(reference))] if reference else ["chroot", "local"] if request.image == "host" else ["chroot"]
    spec = request.workload.spec(request.image)
    seen: dict[str, Admitted | Skipped] = {}

    async def admitted(address: str, *, named: bool) -> "Admitted | Skipped":
        if address not in seen:
            seen[address] = await _admitted(address, spec, closing, named=named)
        return seen[address]

    for address in asked:
        await admitted(address, named=bool(addresses))
    floor = None
    for address in floors:
        if isinstance(await admitted(address, named=reference is not None), Admitted):
            floor = address
            break
    return Field(seen=seen, reference=floor)


async def _admitted(address: str, spec: Spec, closing: AsyncExitStack, *, named: bool) -> "Admitted | Skipped":
    """The substrate at `address`, tried; one that was `named` must at least exist."""
    from excise.meter.admission import admit, one_line  # noqa: PLC0415 - see above
    from excise.meter.records import Skipped  # noqa: PLC0415

    try:
        substrate = make(address)
    except Exception as error:
        if named:
            raise
        return Skipped(address, one_line(error))
    closing.push_async_callback(_close, substrate)
    return await admit(substrate, spec, address)


async def _digest(image: str) -> str | None:
    """The image's content address. Somebody has made a sandbox from it by now; who cannot tell must not end the run."""
    from excise.errors import ExciseError  # noqa: PLC0415 - as above
    from excise.storage.image import resolve  # noqa: PLC0415

    try:
        return (await resolve(image)).digest
    except ExciseError:
        return None


async def _close(substrate: Substrate) -> None:
    """Results are on the disk by now: a substrate that cannot end must not keep them from their reader."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await substrate.close()
    except TimeoutError:
        logging.getLogger(__name__).warning(
            "%s did not close in %g s and was left; `excise gc` removes what it holds", substrate.address, CLOSE_S
        )


def _ignore(_: "Progress") -> None: ...
