"""`excise measure`: what a rollout pays to its infrastructure, on every substrate this machine has."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from excise.cli.sentences import FAILED, say

if TYPE_CHECKING:
    from excise.stats.run import Run

app = App(
    name="measure",
    help_epilogue="""\
The table goes to stdout, progress to stderr, raw results to a directory. Ctrl-C ends a run early and keeps its whole \
blocks. Exit code: 1 when an ADDRESS that was named cannot run here (the others are still measured); 2 when the request \
is wrong; 130 after Ctrl-C.

Examples:
  excise measure
  excise measure docker bubblewrap --budget 180
  excise measure docker --image excise/base --blocks 100 --out results/docker
  excise measure --plan bench namespace docker --blocks 20
  excise measure chroot 'docker?host=unix:///run/docker.sock' --seed 7
""",
)


@app.default
def measure(
    *addresses: str,
    budget: float | None = None,
    blocks: int | None = None,
    image: str = "host",
    workload: str = "t0",
    reference: str | None = None,
    seed: int = 0,
    out: Path | None = None,
    markdown: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    plan: str | None = None,
) -> int:
    """Measure the tax of substrates on this machine and print the table.

    Parameters
    ----------
    addresses
        The substrates; all that run here if none is named.
    budget
        Seconds to spend, 60 unless --blocks is given. Only whole blocks are run, and one always is.
    blocks
        End after this many measured blocks, or before if a --budget is given and used up.
    image
        The root filesystem of every sandbox: host, a name from `excise image list`, or a tar file.
    workload
        What a rollout does: t0, or t0?actions=50.
    reference
        The substrate that work is measured on; chroot if left out, or local where that cannot run.
    seed
        Of the order of substrates within each block.
    out
        A new directory for the results; results/ and the time if left out.
    markdown
        Print the table as Markdown.
    plan
        Measure single operations beside the floor by this plan of the package (bench), or TOML file; then only ADDRESS,
        --blocks and --out are used.
    """
    if plan is not None:
        return _latencies(plan, addresses, blocks, out)
    from excise.address import parse  # noqa: PLC0415 - `excise measure --help` does not pay for the meter
    from excise.api import measure as run_all  # noqa: PLC0415
    from excise.meter.results import default_path, new_id  # noqa: PLC0415
    from excise.report.progress import live  # noqa: PLC0415

    path = out if out is not None else default_path(new_id())
    try:
        with live(sys.stderr) as tell:
            run = run_all(
                *addresses,
                budget_s=budget,
                blocks=blocks,
                image=image,
                workload=workload,
                reference=reference,
                seed=seed,
                out=path,
                progress=tell,
            )
    except KeyboardInterrupt:
        _print_what_there_is(path, markdown=markdown)
        raise
    _print(run, markdown=markdown)
    named = {str(parse(address)) for address in (*addresses, *([reference] if reference else []))}
    return FAILED if any(one.address in named for one in run.skipped) else 0


def _latencies(plan: str, addresses: tuple[str, ...], blocks: int | None, out: Path | None) -> int:
    from excise.api import measure_latencies  # noqa: PLC0415 - see above
    from excise.report.latency import table  # noqa: PLC0415

    header, trials = asyncio.run(measure_latencies(plan, blocks=blocks, out=out, only=addresses))
    sys.stdout.write(table(header, trials))
    return FAILED if any(one.address in addresses for one in header.skipped) else 0


def _print(run: "Run", *, markdown: bool) -> None:
    if markdown:
        from excise.report.markdown import markdown as as_markdown  # noqa: PLC0415 - see above

        sys.stdout.write(as_markdown(run))
    else:
        from excise.report.terminal import show  # noqa: PLC0415 - see above

        show(run, sys.stdout)


def _print_what_there_is(path: Path, *, markdown: bool) -> None:
    """The table of the whole blocks that an interrupted run left on the disk, if it left one."""
    from excise.errors import SpecError  # noqa: PLC0415 - see above
    from excise.meter.results import load  # noqa: PLC0415
    from excise.stats.run import Run  # noqa: PLC0415

    try:
        run = Run(load(path))
    except SpecError:
        return  # It was interrupted before the first trial.
    if run.blocks:
        _print(run, markdown=markdown)
    else:
        say(f"no block was whole yet; what there is of one is in {path}")
