"""Which cells can run: what a substrate cannot do is skipped with the reason, and the others go on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from excise.action import Exec
from excise.errors import CapacityError, CreateError, ReadyTimeout, SandboxLost, SpecError
from excise.meter import cold, identity
from excise.meter.admission import TRIES, Admitted
from excise.meter.places import Place
from excise.meter.privacy import one_line, without_home
from excise.meter.records import Cell, Skipped
from excise.meter.rounds import Bench
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Capabilities
from excise.trace import Trace
from excise.workloads.workload import Requirement, requirements


class Sorted(NamedTuple):
    """The cells that run, and why the others do not."""

    runnable: tuple[Cell, ...]
    skipped: tuple[Skipped, ...]


def with_references(cells: Iterable[Cell], reference: str | None) -> tuple[Cell, ...]:
    """The cells, and for each workload the reference's plain one: without it there is no work, and so no tax."""
    found = dict.fromkeys(cells)
    if reference is not None:
        for workload in dict.fromkeys(cell.workload for cell in tuple(found)):
            found.setdefault(Cell(address=reference, workload=workload))
    return tuple(found)


def refusal(cell: Cell, able: Capabilities) -> str | None:
    """Why `cell` cannot run on a substrate with these abilities, or None."""
    if cell.shell == "session" and not able.sessions:
        return f"{cell.address} has no sessions, which shell=session runs in"
    if cell.reset in ("snapshot", "fork") and able.snapshot is None:
        return f"{cell.address} takes no snapshots, which reset={cell.reset} goes back to"
    if cell.state == "repo-warm" and not able.keeps_steps:
        return f"{cell.address} keeps nothing of a spec's steps, which state=repo-warm begins with"
    if cell.state == "registry" and cell.reset != "recreate":
        return f"state=registry is a state of new sandboxes, which reset={cell.reset} makes none of"
    return cold.refusal() if cell.state == "cold" else None


async def sort_out(cells: Iterable[Cell], admitted: Mapping[str, Admitted], bench: Bench) -> Sorted:
    """Who of the admitted can run which cells; each way to a start state is gone once before it counts."""
    runnable: list[Cell] = []
    skipped: list[Skipped] = []
    tried: dict[tuple[str, str, str, str], str | None] = {}
    for cell in cells:
        if cell.address not in admitted:
            continue
        reason = refusal(cell, admitted[cell.address].capabilities)
        if reason is None:
            way = (cell.address, cell.workload, cell.reset, cell.state)
            if way not in tried:
                tried[way] = await _try_out(bench, cell, admitted[cell.address].capabilities)
            reason = tried[way]
        if reason is None:
            runnable.append(cell)
        else:
            skipped.append(Skipped(cell.address, reason, cell))
    return Sorted(tuple(runnable), tuple(skipped))


async def _try_out(bench: Bench, cell: Cell, able: Capabilities) -> str | None:
    place: Place | None = None
    try:
        image = await bench.image_of(cell)
        local = cell.state == "cold" and able.kernel == "shared"
        if cell.reset == "recreate" and bench.spec(cell, image) == Spec(image=bench.image) and not local:
            return None  # Its admission was this very thing.
        place = bench.place(cell, image)
        await _once(place, requirements(bench.workloads[cell.workload]), local=local)
    except Exception as error:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
        return without_home(one_line(error))
    finally:
        if place is not None:
            await place.close()
    return None


async def _once(place: Place, needed: Sequence[Requirement], *, local: bool) -> None:
    """`local`: it must be on this very host, whose page cache is dropped."""
    for tries_left in reversed(range(TRIES)):
        try:
            await place.prepare()
            async with place.sandbox(Trace()) as box:
                if local:
                    await _need_this_host(box)
                for one in needed:
                    if not (await box.run(one.action)).ok:
                        raise SpecError(one.sentence)
                return
        except (CapacityError, CreateError, ReadyTimeout, SandboxLost):
            if not tries_left:
                raise


async def _need_this_host(box: Sandbox) -> None:
    """A sandbox that shares another host's kernel, as a pod on another node does, is not cold because ours is."""
    answer = await box.run(Exec(("cat", "/proc/sys/kernel/random/boot_id"), timeout_s=60.0))
    if answer.ok and answer.text.strip() != identity.this_host().boot:
        raise SpecError("state=cold drops this host's page cache, and the sandbox runs on another: use state=registry")
