"""What `excise measure --dry-run` prints: the cells, and how long they will take."""

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from excise.measuring import DryRun
    from excise.meter.records import Cell


def show(run: "DryRun", file: TextIO) -> None:
    """A line a cell, in the plan's order; then what it comes to, and who is left out."""
    names = [named(one.cell) for one in run.forecast.cells]
    width = max(map(len, names))
    for name, one in zip(names, run.forecast.cells, strict=True):
        mark = "" if one.measured else " ~"
        file.write(f"{name:{width}}  {one.trial_s:8.2f} s{mark}\n")
    seen, plan = run.forecast, run.plan
    file.write(
        f"\n{len(names)} cells, {seen.block_s:.1f} s a block; {seen.blocks} blocks after {plan.warmup_blocks} to warm up, "
        f"about {duration(seen.total_s)}.\n"
    )
    if plan.rerun_noisy:
        file.write("Trials after a noisy moment are run once more: up to twice as long on a busy machine.\n")
    if not all(one.measured for one in seen.cells):
        file.write("~: put together from a rollout of T0 there and of the workload on the reference, not measured before.\n")
    for one in run.skipped:
        file.write(f"Skipped {one.address if one.cell is None else named(one.cell)}: {one.reason}.\n")


def named(cell: "Cell") -> str:
    """`docker, t2, shell=login`."""
    factors = [f"{name}={value}" for name, value in cell.factors().items()]
    return ", ".join((cell.address, cell.workload, *factors))


def duration(seconds: float) -> str:
    """In the unit that a person would say it in."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
