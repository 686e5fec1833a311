"""What `excise measure --control RESULTS` prints: the run's ratios, and the same with every daemon still."""

from typing import TYPE_CHECKING, TextIO

from excise.cli.dry_run import named

if TYPE_CHECKING:
    from excise.stats.run import Run


def show(run: "Run", file: TextIO) -> None:
    """A line a cell that needs no daemon."""
    from excise.cli.like import aligned, ratio, verdict  # noqa: PLC0415 - `excise measure --help` does not pay for the statistics
    from excise.stats.control import controlled  # noqa: PLC0415

    found = controlled(run)
    if not found:
        file.write("No cell succeeded both in the run and in its control blocks: there is no ratio to compare.\n")
        return
    heads = ("times as long", "daemons as they were", "daemons still", "")
    lines = [
        (f"{named(one.cell)} / {one.reference.address}", ratio(one.measured), ratio(one.control), verdict(agrees=one.agrees))
        for one in found
    ]
    file.write(aligned([heads, *lines]))
    file.write(f"\n{run.blocks} blocks of the run, {max(one.n for one in found)} control blocks.\n")
