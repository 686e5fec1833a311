"""A live line on stderr: which block, which substrate, how long still."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from excise.meter.blocks import Progress as At


@contextmanager
def live(file: TextIO) -> Generator[Callable[[At], None]]:
    """A callback for `measure(progress=...)`. Where `file` is no terminal nothing is drawn."""
    console = Console(file=file)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("finding out what runs here", total=None, left="")

        def tell(at: At) -> None:
            total = None if at.left_s is None else at.elapsed_s + at.left_s
            left = "" if at.left_s is None else f"about {at.left_s:.0f} s left"
            bar.update(task, description=describe(at), completed=at.elapsed_s, total=total, left=left)

        yield tell


def describe(at: At) -> str:
    """`block 3 of 10, docker (2 of 5)`."""
    of = "" if at.blocks is None else f" of {at.blocks}"
    warm = ", warming up" if at.warmup else ""
    return f"block {at.block + 1}{of}{warm}, {at.address} ({at.position + 1} of {at.cells})"
