"""What `excise measure` shows: progress while it runs, the table at its end, and what there is of an interrupted run."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from excise.cli.sentences import say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.meter.blocks import Progress
    from excise.stats.run import Run

SPEAK_EVERY_S = 10.0
"""How often progress is a line, where there is no terminal to draw it on."""


@contextmanager
def progress() -> "Generator[Callable[[Progress], None]]":
    """A bar on a terminal; elsewhere a line now and then, for a log."""
    from excise.report.progress import describe, live  # noqa: PLC0415 - `excise measure --help` does not pay for it

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
def keeping(path: Path, *, markdown: bool) -> Generator[None]:
    """If the run is interrupted, print what there is of it."""
    try:
        yield
    except KeyboardInterrupt:
        _print_what_there_is(path, markdown=markdown)
        raise


def print_table(run: "Run", *, markdown: bool) -> None:
    if markdown:
        from excise.report.markdown import markdown as as_markdown  # noqa: PLC0415 - see above

        sys.stdout.write(as_markdown(run))
    else:
        from excise.report.terminal import show  # noqa: PLC0415 - see above

        show(run, sys.stdout)


def print_ratios(run: "Run", theirs: Path) -> None:
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
        print_table(run, markdown=markdown)
    else:
        say(f"no block was whole yet; what there is of one is in {path}")
    say(f"`excise measure --resume {path}` goes on")
