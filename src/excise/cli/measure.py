"""`excise measure`: what a rollout pays to its infrastructure, on every substrate this machine has."""

import asyncio
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from excise.cli.sentences import FAILED, say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.meter.blocks import Progress
    from excise.plans import RolloutPlan
    from excise.stats.run import Run

DEFAULT_PLAN = "quick"
SPEAK_EVERY_S = 10.0
"""How often progress is a line, where there is no terminal to draw it on."""

app = App(
    name="measure",
    help_epilogue="""\
The table goes to stdout, progress to stderr, raw results to a directory. Ctrl-C ends a run early and keeps its whole \
blocks; --resume goes on with it. Exit code: 1 when an ADDRESS that was named cannot run here (the others are still \
measured); 2 when the request is wrong; 130 after Ctrl-C.

Plans: smoke (20 s), quick (three minutes, the default), bench (single operations beside the floor), paper (all of it), \
fig1 to fig6; or a TOML file of your own.

Examples:
  excise measure
  excise measure docker bubblewrap --budget 180
  excise measure docker --image excise/base --blocks 100 --out results/docker
  excise measure --plan paper --dry-run
  excise measure --plan paper --detach --out results/paper
  excise measure --resume results/paper
  excise measure --like docs/results/seam/t0 --blocks 20
  excise measure --plan bench namespace docker --blocks 20
""",
)

Flag = Annotated[bool, Parameter(negative="", show_default=False)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said."""

    plan: str | None = None
    budget: float | None = None
    blocks: int | None = None
    image: str | None = None
    workload: str | None = None
    reference: str | None = None
    seed: int | None = None
    out: Path | None = None
    like: Path | None = None
    resume: Path | None = None
    markdown: bool = False

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)]

    def tokens(self) -> list[str]:
        """The command line that says this."""
        found: list[str] = []
        for name in self.given():
            value = getattr(self, name)
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return found


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
        markdown=markdown,
    )
    if dry_run:
        return _dry_run(options, addresses)
    if detach:
        return _detach(options, addresses)
    if resume is not None:
        return _resume(options, addresses)
    if like is None and plan is not None and _is_latencies(plan):
        return _latencies(plan, options, addresses)
    return _measure(options, addresses)


def _measure(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - `excise measure --help` does not pay for the meter
    from excise.address import parse  # noqa: PLC0415
    from excise.meter.results import default_path, new_id  # noqa: PLC0415

    wanted = _wanted(options)
    path = options.out if options.out is not None else default_path(new_id())
    with _keeping(path, markdown=options.markdown), _progress() as tell:
        run = asyncio.run(measuring.measure(wanted, addresses, name=_name(options), out=path, tell=tell))
    _print(run, markdown=options.markdown)
    if options.like is not None:
        _print_like(run, options.like)
    named = {str(parse(one)) for one in (*addresses, *([options.reference] if options.reference else []))}
    return FAILED if any(one.address in named and one.cell is None for one in run.skipped) else 0


def _wanted(options: Options) -> "RolloutPlan":
    from excise.plans import like, load_rollouts, overridden  # noqa: PLC0415 - see above

    if options.like is not None:
        if options.plan is not None:
            raise SpecError("--like repeats the plan of those results: leave --plan out")
        base = like(options.like)
    else:
        base = load_rollouts(options.plan or DEFAULT_PLAN)
    return overridden(
        base,
        workload=options.workload,
        image=options.image,
        reference=options.reference,
        seed=options.seed,
        blocks=options.blocks,
        budget_s=options.budget,
    )


def _name(options: Options) -> str:
    return "" if options.like is not None else Path(options.plan or DEFAULT_PLAN).stem


def _resume(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - see above

    path = options.resume
    assert path is not None
    extra = sorted({*options.given(), *(["ADDRESS"] if addresses else [])} - {"resume", "markdown"})
    if extra:
        raise SpecError(f"--resume goes on with the run's own plan: leave {', '.join(extra)} out")
    with _keeping(path, markdown=options.markdown), _progress() as tell:
        run = asyncio.run(measuring.resume(path, tell=tell))
    _print(run, markdown=options.markdown)
    return 0


def _dry_run(options: Options, addresses: tuple[str, ...]) -> int:
    from excise import measuring  # noqa: PLC0415 - see above
    from excise.cli import dry_run  # noqa: PLC0415

    dry_run.show(asyncio.run(measuring.dry_run(_wanted(options), addresses)), sys.stdout)
    return 0


def _detach(options: Options, addresses: tuple[str, ...]) -> int:
    from excise.cli.background import detach  # noqa: PLC0415 - see above
    from excise.meter.results import default_path, new_id  # noqa: PLC0415
    from excise.meter.resume import interrupted  # noqa: PLC0415

    if options.resume is not None:
        interrupted(options.resume)  # What is wrong is said here, not in a log.
        detach([*addresses, *options.tokens()], options.resume, go_on=True)
        return 0
    if options.like is not None or options.plan is None or not _is_latencies(options.plan):
        _wanted(options).narrowed(addresses)
    path = options.out if options.out is not None else default_path(new_id())
    detach([*addresses, *msgspec.structs.replace(options, out=path).tokens()], path, go_on=False)
    return 0


def _is_latencies(plan: str) -> bool:
    from excise.plans import LatencyPlan, load  # noqa: PLC0415 - see above

    return isinstance(load(plan), LatencyPlan)


def _latencies(plan: str, options: Options, addresses: tuple[str, ...]) -> int:
    from excise.api import measure_latencies  # noqa: PLC0415 - see above
    from excise.report.latency import table  # noqa: PLC0415

    extra = sorted(set(options.given()) - {"plan", "blocks", "out"})
    if extra:
        raise SpecError(f"plan {plan!r} measures single operations, which take no {extra[0]}: leave it out")
    header, trials = asyncio.run(measure_latencies(plan, blocks=options.blocks, out=options.out, only=addresses))
    sys.stdout.write(table(header, trials))
    return FAILED if any(one.address in addresses for one in header.skipped) else 0


@contextmanager
def _progress() -> "Generator[Callable[[Progress], None]]":
    """A bar on a terminal; elsewhere a line now and then, for a log."""
    from excise.report.progress import describe, live  # noqa: PLC0415 - see above

    if sys.stderr.isatty():
        with live(sys.stderr) as tell:
            yield tell
        return
    spoke_s = time.monotonic()

    def speak(at: "Progress") -> None:
        nonlocal spoke_s
        if time.monotonic() - spoke_s >= SPEAK_EVERY_S:
            spoke_s = time.monotonic()
            say(describe(at) + ("" if at.left_s is None else f", about {at.left_s:.0f} s left"))

    yield speak


@contextmanager
def _keeping(path: Path, *, markdown: bool) -> Generator[None]:
    """If the run is interrupted, print what there is of it."""
    try:
        yield
    except KeyboardInterrupt:
        _print_what_there_is(path, markdown=markdown)
        raise


def _print(run: "Run", *, markdown: bool) -> None:
    if markdown:
        from excise.report.markdown import markdown as as_markdown  # noqa: PLC0415 - see above

        sys.stdout.write(as_markdown(run))
    else:
        from excise.report.terminal import show  # noqa: PLC0415 - see above

        show(run, sys.stdout)


def _print_like(run: "Run", theirs: Path) -> None:
    from excise.cli import like  # noqa: PLC0415 - see above
    from excise.stats.run import Run  # noqa: PLC0415

    like.show(run, Run.read(theirs), sys.stdout)


def _print_what_there_is(path: Path, *, markdown: bool) -> None:
    """The table of the whole blocks that an interrupted run left on the disk, if it left one."""
    from excise.stats.run import Run  # noqa: PLC0415 - see above

    try:
        run = Run.read(path)
    except SpecError:
        return  # It was interrupted before the first trial.
    if run.blocks:
        _print(run, markdown=markdown)
    else:
        say(f"no block was whole yet; what there is of one is in {path}")
    say(f"`excise measure --resume {path}` goes on")
