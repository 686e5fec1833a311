"""`excise measure` with a plan of claims: warm, burst, mixed."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from excise.cli.dry_run import duration
from excise.cli.measure_options import Options, name_of
from excise.cli.measure_output import progress
from excise.cli.sentences import FAILED, say

if TYPE_CHECKING:
    from excise.measuring_pools import PoolDryRun
    from excise.meter.pool_run import Read
    from excise.plans import PoolPlanFile


def measure_pools(plan: "PoolPlanFile", addresses: tuple[str, ...], options: Options) -> int:
    """Run it; an interrupted run says how to go on."""
    from excise import measuring_pools  # noqa: PLC0415 - `excise measure --help` does not pay for the meter
    from excise.meter.results import default_path, new_id  # noqa: PLC0415

    path = options.out if options.out is not None else default_path(new_id())
    try:
        with progress() as tell:
            found = asyncio.run(measuring_pools.measure_pools(plan, addresses, name=name_of(options), out=path, tell=tell))
    except KeyboardInterrupt:
        say(f"what there is lies in {path}; `excise measure --resume {path}` goes on")
        raise
    return _shown(found, addresses)


def resume_pools(path: Path, options: Options) -> int:
    from excise import measuring_pools  # noqa: PLC0415 - see above

    with progress() as tell:
        found = asyncio.run(measuring_pools.resume_pools(path, tell=tell))
    return _shown(found, ())


def _shown(found: "Read", addresses: tuple[str, ...]) -> int:
    from excise.report.pools import table  # noqa: PLC0415 - see above

    header, trials = found
    sys.stdout.write(table(header, trials))
    return FAILED if any(one.address in addresses for one in header.skipped) else 0


def show_dry_run(plan: "PoolPlanFile", addresses: tuple[str, ...]) -> int:
    from excise import measuring_pools  # noqa: PLC0415 - see above

    show(asyncio.run(measuring_pools.dry_run_pools(plan, addresses)), sys.stdout)
    return 0


def show(run: "PoolDryRun", file: TextIO) -> None:
    """A line a cell, in the plan's order; then what it comes to, and who is left out."""
    seen = run.forecast
    names = [one.cell.words() for one in seen.cells]
    width = max(map(len, names))
    for name, one in zip(names, seen.cells, strict=True):
        file.write(f"{name:{width}}  {one.trial_s:8.2f} s\n")
    file.write(
        f"\n{len(names)} cells, {seen.block_s:.1f} s a block; {seen.blocks} blocks after {run.plan.warmup_blocks} to warm up, "
        f"about {duration(seen.total_s)}.\n"
        "From one claim of each source here and now, as if nothing were ever found: on a busy machine it takes longer.\n"
    )
    for one in run.skipped:
        file.write(f"Skipped {one.address}: {one.reason}.\n")
