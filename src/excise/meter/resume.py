"""Going on with a run that was interrupted: the same plan, host and code, and whole blocks as before."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from excise.errors import SpecError
from excise.meter.admission import Field
from excise.meter.blocks import Done, Progress
from excise.meter.conduct import bench_of, go
from excise.meter.packed import TRIALS, packed_files
from excise.meter.provenance import provenance
from excise.meter.records import Header, Provenance, Trial
from excise.meter.results import Results, Writer, load, scan, whole_blocks
from excise.workloads.workload import Workload


class Interrupted(NamedTuple):
    """What lies on the disk of a run."""

    header: Header
    done: Done
    used: frozenset[str]
    """The identities of sandboxes that its trials used."""


def interrupted(path: Path) -> Interrupted:
    """The run in `path`, if this host and this code may go on with it."""
    header, trials = scan(path)
    if not (path / TRIALS).exists() and packed_files(path):
        raise SpecError(f"{path} is a bundle to read: unpack its trials into {TRIALS} with gunzip to go on with it")
    require_same(path, header.provenance, provenance(path, {}))
    used: set[str] = set()
    last = -1
    waves_ns: dict[tuple[int, int, bool], int] = {}

    def noted(trial: Trial) -> Trial:
        nonlocal last
        last = max(last, trial.block)
        used.add(trial.identity)
        if not trial.control:
            wave = (trial.block, trial.position, trial.rerun)
            waves_ns[wave] = max(waves_ns.get(wave, 0), trial.ended_ns + trial.quiet.window_ns)
        return trial

    measured = len(whole_blocks(header.plan.cells, (trial for trial in map(noted, trials) if not trial.warmup)))
    elapsed_s = sum(waves_ns.values()) / 1e9
    return Interrupted(header, Done(next_block=last + 1, measured=measured, elapsed_s=elapsed_s), frozenset(used - {""}))


def require_same(path: Path, then: Provenance, now: Provenance) -> None:
    if then.host != now.host:
        raise SpecError(
            f"{path} was measured on another host ({then.cpu}, {then.kernel}): `excise measure --like {path}` repeats it here"
        )
    if then.kernel != now.kernel:
        raise SpecError(f"{path} was measured on {then.kernel} and this is {now.kernel}: begin a new run")
    if then.code != now.code:
        raise SpecError(f"{path} was measured by other code than this: go on with the excise that began it, or begin a new run")


async def go_on(
    path: Path, before: Interrupted, field: Field, workloads: Mapping[str, Workload], tell: Callable[[Progress], None]
) -> Results:
    """Measure what is missing, after warming up again."""
    header = before.header
    wanted = {cell.address for cell in header.plan.cells}
    for one in field.skipped:
        if one.address in wanted:
            raise SpecError(f"{one.address} is in {path} and cannot run now ({one.reason}): enable it, or begin a new run")
    bench = bench_of(field, workloads, header.plan.image)
    with Writer(path, header, go_on=True) as writer:
        await go(header, bench, writer, tell, done=before.done, used=before.used)
    return load(path)
