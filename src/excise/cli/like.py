"""What `excise measure --like RESULTS` prints below the table: our ratios beside theirs."""

from typing import TYPE_CHECKING, TextIO

from excise.cli.dry_run import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from excise.meter.records import Provenance
    from excise.stats.estimate import Estimate
    from excise.stats.run import Run


def show(ours: "Run", theirs: "Run", file: TextIO) -> None:
    """Ratios within each run; no time of one host stands beside the other's."""
    from excise.stats.likeness import pairs  # noqa: PLC0415 - `excise measure --help` does not pay for the statistics

    found = pairs(ours, theirs)
    if not found:
        file.write("\nNo two rows are in both runs: there is no ratio to set beside theirs.\n")
        return
    heads = ("times as long", "here", "there", "")
    lines = [
        (f"{named(one.cell)} / {one.to.address}", ratio(one.ours), ratio(one.theirs), verdict(agrees=one.agrees))
        for one in found
    ]
    file.write("\n" + aligned([heads, *lines]))
    here, there = ours.header.provenance, theirs.header.provenance
    file.write(
        f"\nHere: {_blocks(ours)} on {here.cores} cores of {here.cpu}, {here.kernel}. There: {_blocks(theirs)} on "
        f"{there.cores} cores of {there.cpu}, {there.kernel}.\n"
    )
    if here.image_digest != there.image_digest:
        file.write("The image is not the same: its digest differs, so part of a difference may be the programs in it.\n")
    if here.code != there.code:
        file.write(f"The code is not the same: {_code(here)} here, {_code(there)} there.\n")


def _blocks(run: "Run") -> str:
    return "1 block" if run.blocks == 1 else f"{run.blocks} blocks"


def aligned(lines: "Sequence[Sequence[str]]") -> str:
    """The lines with their columns below each other."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "".join("  ".join(text.ljust(width) for text, width in line).rstrip() + "\n" for line in padded)


def _code(found: "Provenance") -> str:
    return f"excise {found.excise} ({found.code.removeprefix('sha256:')[:12]})"


def ratio(found: "Estimate") -> str:
    """A ratio, and its interval where there is one."""
    if found.low is None or found.high is None:
        return f"{found.value:.3g}"
    return f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g})"


def verdict(*, agrees: bool | None) -> str:
    """Of two intervals."""
    return "no interval yet" if agrees is None else "agrees" if agrees else "differs"
