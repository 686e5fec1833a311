"""The one place where the two halves meet: deliver sandboxes, and measure substrates."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.errors import SpecError
from excise.handles import finish
from excise.registry import make
from excise.substrate import Substrate
from excise.trace import recording
from excise.trajectory import keeping

if TYPE_CHECKING:  # The meter is loaded when something is measured, not when somebody connects.
    from excise.economics.answer import Advice
    from excise.economics.demand import Demand
    from excise.economics.measured import Measured
    from excise.meter.blocks import Progress
    from excise.meter.latency_records import LatencyHeader, LatencyTrial
    from excise.plans import RolloutPlan
    from excise.stats.run import Run
    from excise.stats.shares import Recording


@asynccontextmanager
async def connect(address: str) -> AsyncGenerator[Substrate]:
    """The substrate at `address`, closed at the end of the block."""
    substrate = make(address)
    try:
        yield substrate
    finally:
        await finish(substrate.close())


@contextmanager
def record(actions: str | Path | None = None) -> Generator["Recording"]:
    """Meter your own loop: every sandbox used in this block lands in the recording.

    `print(trace)` afterwards says "model 71 %, work 17 %, tax 12 %"; `trace.shares()` has the seconds. `actions` names a file
    (.jsonl) that what is done in the block's sandboxes is added to, as a workload for `excise measure`; no secret's value is.

    Tasks started in the block are recorded too. Threads are not, because Python starts them in an empty context: hand them
    this one, `pool.submit(contextvars.copy_context().run, rollout, task)`.
    """
    from excise.stats.shares import Recording  # noqa: PLC0415 - see above

    trace = Recording()
    with recording(trace), keeping(Path(actions)) if actions is not None else nullcontext():
        yield trace


def measure(
    *addresses: str,
    plan: "str | RolloutPlan | None" = None,
    budget_s: float | None = None,
    blocks: int | None = None,
    image: str | None = None,
    workload: str | None = None,
    reference: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: "Callable[[Progress], None] | None" = None,
) -> "Run":
    """Measure substrates in blocks on this machine; without addresses, all that run here. Blocks until it is done.

    `plan` names a plan of the package or a TOML file, or is one; what else is given goes before what it says. Without one,
    `workload` (t0) is measured on `image` (host), which takes about a minute.

    The run ends at `blocks` measured blocks or when `budget_s` is used up, whichever is first, and always after a whole
    block. Results go to the directory `out` (default: results/ and the time).
    `reference` is the substrate that work is measured on; by default `chroot+guest`; `chroot` where the guest is not
    built; `local` where neither can run and the image is the host's own.
    """
    if _in_a_loop():
        raise RuntimeError("excise.measure blocks: inside a running event loop, await excise.api.measure_async instead")
    return asyncio.run(
        measure_async(
            *addresses,
            plan=plan,
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


def advise(
    demand: "Demand | None" = None,
    *,
    results: "Sequence[str | Path] | Measured" = (),
    workload: str | None = None,
    **wanted: Any,
) -> "Advice":
    """Which substrate, path, start state and pool cost least for `demand`, from what was measured on this host.

    `wanted` are fields of `excise.economics.demand.Demand`, in place of one: `advise(actions=150, parallel=64, kernel="own")`.
    `excise.connect(advice.best.connect)` is then what to use. `results` are directories that `excise measure` wrote; without
    any, the newest in results/. A trainer that asks in every phase reads them once, with `excise.advising.measured_here`, and
    hands that over instead.
    """
    from excise import advising  # noqa: PLC0415 - see above
    from excise.economics import advice, measured  # noqa: PLC0415
    from excise.economics.demand import Demand  # noqa: PLC0415

    if demand is not None and wanted:
        raise SpecError("say what is wanted as a Demand, or field by field, not both")
    unknown = sorted(wanted.keys() - set(Demand.__struct_fields__))
    if unknown:
        raise SpecError(f"advise takes no {unknown[0]!r}; there are: {', '.join(Demand.__struct_fields__)}")
    found = results if isinstance(results, measured.Measured) else advising.measured_here(results)
    return advice.advise(found, demand or Demand(**wanted), workload=workload, known=advising.known())


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def measure_async(
    *addresses: str,
    plan: "str | RolloutPlan | None" = None,
    budget_s: float | None = None,
    blocks: int | None = None,
    image: str | None = None,
    workload: str | None = None,
    reference: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: "Callable[[Progress], None] | None" = None,
) -> "Run":
    """`measure`, for callers that have an event loop."""
    from excise import measuring  # noqa: PLC0415 - see above
    from excise.plans import PLAIN, load_rollouts, overridden  # noqa: PLC0415

    base = load_rollouts(plan) if isinstance(plan, str) else plan or PLAIN
    wanted = overridden(base, workload=workload, image=image, reference=reference, seed=seed, blocks=blocks, budget_s=budget_s)
    return await measuring.measure(
        wanted,
        addresses,
        name=plan if isinstance(plan, str) else "",
        out=None if out is None else Path(out),
        tell=progress or _ignore,
    )


async def measure_latencies(
    plan: str, *, blocks: int | None = None, out: str | Path | None = None, only: Sequence[str] = ()
) -> "tuple[LatencyHeader, tuple[LatencyTrial, ...]]":
    """What single operations cost beside the floor, by the plan of that name; `only`: the addresses to measure of it."""
    from excise import measuring  # noqa: PLC0415 - see above

    return await measuring.measure_latencies(plan, only, blocks=blocks, out=out)


def _ignore(_: "Progress") -> None: ...
