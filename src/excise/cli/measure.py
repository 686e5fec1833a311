"""`excise measure`: what a rollout pays to its infrastructure, on every substrate this machine has."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from excise.cli.measure_options import Options, is_latencies, name_of, pools_wanted, refuse_plan_names, wanted
from excise.cli.measure_output import keeping, print_ratios, print_table, progress
from excise.cli.sentences import FAILED, say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.stats.run import Run

app = App(
    name="measure",
    help_epilogue="""\
The table goes to stdout, progress to stderr, raw results to a directory. Ctrl-C ends a run early and keeps its whole \
blocks; --resume goes on with it. Exit code: 1 when an ADDRESS that was named cannot run here, or no trial of a row \
succeeded (the others are still measured); 2 when the request is wrong; 130 after Ctrl-C.

Plans: smoke (20 s), quick (three minutes, the default), bench (single operations beside the floor), load (arrivals at \
several rates), warm (every start state), burst (1 to 256 claims at once), mixed (200 tasks and a pool for some of them), \
paper (all of it), fig1 to fig6; or a TOML file of your own.

Examples:
  excise measure
  excise measure docker bubblewrap --budget 180
  excise measure docker --image excise/base --blocks 100 --out results/docker
  excise measure --plan paper --dry-run
  excise measure --plan paper --detach --out results/paper
  excise measure --resume results/paper
  excise measure --control results/paper
  excise measure --like docs/results/seam/t0 --blocks 20
  excise measure --plan bench namespace docker --blocks 20
""",
)

Flag = Annotated[bool, Parameter(negative="", show_default=False)]


@app.default
def measure(
    *addresses: str,
    plan: str | None = None,
    budget: float | None = None,
    blocks: int | None = None,
    image: str | None = None,
    workload: str | None = None,
    reference: str | None = None,
    seed: int | None = None,
    out: Path | None = None,
    markdown: Flag = False,
    dry_run: Flag = False,
    detach: Flag = False,
    resume: Path | None = None,
    control: Path | None = None,
    like: Path | None = None,
) -> int:
    """Measure the tax of substrates on this machine and print the table.

    Parameters
    ----------
    addresses
        The substrates; all that the plan names if none is named, or all that run here.
    plan
        What to measure: a plan of the package, or a TOML file; quick if left out. The options below go before what it says.
    budget
        Seconds to spend. Only whole blocks are run, and one always is.
    blocks
        End after this many measured blocks, or before if a --budget is given and used up.
    image
        The root filesystem of every sandbox: host, a name from `excise image list`, or a tar file.
    workload
        What a rollout does: t0, t0?actions=50, t2.
    reference
        The substrate that work is measured on; if left out, the first that runs here of chroot+guest, chroot and local.
    seed
        Of the order of substrates within each block.
    out
        A new directory for the results; results/ and the time if left out.
    markdown
        Print the table as Markdown.
    dry_run
        Measure nothing: print the cells, and about how long they will take.
    detach
        Run in the background, with a log in the results directory.
    resume
        Go on with the interrupted run in this directory: same host, same code, same plan.
    control
        Add control blocks to the run in this directory (--blocks of them, or 6): what of it needs no daemon, while every daemon
        is stopped. Nobody's daemons are stopped for it: stop them first, and start them afterwards.
    like
        Repeat somebody's run, as far as this machine can, and print our ratios beside theirs.
    """
    options = Options(
        plan=plan,
        budget=budget,
        blocks=blocks,
        image=image,
        workload=workload,
        reference=reference,
        seed=seed,
        out=out,
        like=like,
        resume=resume,
        control=control,
        markdown=markdown,
    )
    refuse_plan_names(addresses)
    pools = pools_wanted(options)
    if control is not None:
        return _control(options, addresses, alone=not (dry_run or detach))
    if pools is not None and not detach:
        from excise.cli.measure_pools import measure_pools, show_dry_run  # noqa: PLC0415 - as few plans are of claims

        return show_dry_run(pools, addresses) if dry_run else measure_pools(pools, addresses, options)
    if dry_run:
        return _dry_run(options, addresses)
    if detach:
        return _detach(options, addresses)
    if resume is not None:
        return _resume(options, addresses)
    if like is None and plan is not None and is_latencies(plan):
        return _latencies(plan, options, addresses)
    return _measure(options, addresses)


def _measure(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - `excise measure --help` does not pay for the meter
    from excise.address import parse  # noqa: PLC0415
    from excise.meter.results import default_path, new_id  # noqa: PLC0415

    plan = wanted(options)
    path = options.out if options.out is not None else default_path(new_id())
    with keeping(path, markdown=options.markdown), progress() as tell:
        run = asyncio.run(measuring.measure(plan, addresses, name=name_of(options), out=path, tell=tell))
    print_table(run, markdown=options.markdown)
    if options.like is not None:
        print_ratios(run, options.like)
    named = {str(parse(one)) for one in (*addresses, *([options.reference] if options.reference else []))}
    return FAILED if any(one.address in named and one.cell is None for one in run.skipped) else _judged(run)


def _judged(run: "Run") -> int:
    """1 where a row has trials and no success: the others are there, but a script must not take this for a whole table."""
    failed = [f"{row.name} on {row.cell.workload}" for row in run.rows if row.attempted and not row.n]
    if not failed:
        return 0
    say(f"no trial succeeded of {', '.join(failed)}; the reasons are below the table")
    return FAILED


def _resume(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - see above
    from excise.meter.results import kind_of  # noqa: PLC0415

    path = options.resume
    assert path is not None
    options.refuse_beside("resume", addresses)
    if kind_of(path) == "pool":
        from excise.cli.measure_pools import resume_pools  # noqa: PLC0415 - see above

        return resume_pools(path, options)
    with keeping(path, markdown=options.markdown), progress() as tell:
        run = asyncio.run(measuring.resume(path, tell=tell))
    print_table(run, markdown=options.markdown)
    return _judged(run)


def _control(options: Options, addresses: tuple[str, ...], *, alone: bool) -> int:
    from excise import measuring  # noqa: PLC0415 - see above
    from excise.cli.control import show  # noqa: PLC0415
    from excise.meter.control import BLOCKS  # noqa: PLC0415

    path = options.control
    assert path is not None
    options.refuse_beside("control", addresses, taken=frozenset({"blocks"}))
    if not alone:
        raise SpecError("--control runs here and now, while the daemons are stopped: leave --dry-run and --detach out")
    blocks = BLOCKS if options.blocks is None else options.blocks
    with progress() as tell:
        run = asyncio.run(measuring.control(path, blocks=blocks, tell=tell))
    show(run, sys.stdout)
    return 0


def _dry_run(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - see above
    from excise.cli import dry_run  # noqa: PLC0415

    dry_run.show(asyncio.run(measuring.dry_run(wanted(options), addresses)), sys.stdout)
    return 0


def _detach(options: Options, addresses: tuple[str, ...]) -> int:
    from excise.cli.background import detach  # noqa: PLC0415 - see above
    from excise.meter.pool_run import interrupted as pools_interrupted  # noqa: PLC0415
    from excise.meter.results import default_path, kind_of, new_id  # noqa: PLC0415
    from excise.meter.resume import interrupted  # noqa: PLC0415

    if options.resume is not None:
        check = pools_interrupted if kind_of(options.resume) == "pool" else interrupted
        check(options.resume)  # What is wrong is said here, not in a log.
        detach([*addresses, *options.tokens()], options.resume, go_on=True)
        return 0
    pools = pools_wanted(options)
    if pools is not None:
        pools.narrowed(addresses)
    elif options.like is not None or options.plan is None or not is_latencies(options.plan):
        wanted(options).narrowed(addresses)
    path = options.out if options.out is not None else default_path(new_id())
    detach([*addresses, *msgspec.structs.replace(options, out=path).tokens()], path, go_on=False)
    return 0


def _latencies(plan: str, options: Options, addresses: tuple[str, ...]) -> int:
    from excise.api import measure_latencies  # noqa: PLC0415 - see above
    from excise.report.latency import table  # noqa: PLC0415

    extra = sorted(set(options.given()) - {"plan", "blocks", "out"})
    if extra:
        raise SpecError(f"plan {plan!r} measures single operations, which take no {extra[0]}: leave it out")
    header, trials = asyncio.run(measure_latencies(plan, blocks=options.blocks, out=options.out, only=addresses))
    sys.stdout.write(table(header, trials))
    return FAILED if any(one.address in addresses for one in header.skipped) else 0
