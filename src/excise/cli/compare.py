"""`excise compare`: two runs, or two addresses of one, by ratios; a gate for continuous integration."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from excise.cli.sentences import FAILED
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.stats.comparison import Comparison

app = App(
    name="compare",
    help_epilogue="""\
Numbers are divided by the reference (of single operations: the floor; of claims: one without a pool) of their own \
run, so runs of two hosts can be \
compared, and only ratios are. Something got slower if its whole 95 % interval is beyond the threshold: noise \
alone does not stop a build.

Exit code: 1 when something got slower, or never succeeds any more; 2 when the runs cannot be compared.

Examples:
  excise compare results/main results/mine
  excise compare results/main results/mine --threshold 1.05 --github
  excise compare results/mine --from docker --to docker+guest""",
)


@app.default
def compare(
    before: Path,
    after: Path | None = None,
    *,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    threshold: float = 1.10,
    github: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Compare two results directories, or two addresses of one, and fail where something got slower.

    Parameters
    ----------
    before
        A results directory.
    after
        The other one, of the same kind: rollouts, single operations, or claims.
    from_
        In one directory: the address that --to is compared with.
    to
        In one directory: the address that must not be slower than --from.
    threshold
        How many times slower is too slow.
    github
        Append the table to the file that $GITHUB_STEP_SUMMARY names.
    """
    if after is not None and from_ is None and to is None:
        found = _directories(before, after, threshold)
        title = f"{after.name} against {before.name}"
    elif after is None and from_ is not None and to is not None:
        found = _addresses(before, from_, to, threshold)
        title = f"{to} against {from_}"
    else:
        raise SpecError("compare two results directories, or one with --from ADDRESS and --to ADDRESS")
    from excise.report.compared import markdown, text  # noqa: PLC0415 - `excise compare --help` does not pay for it

    sys.stdout.write(text(found))
    if github:
        _append_summary(markdown(found, title))
    return FAILED if found.slower else 0


def _directories(before: Path, after: Path, threshold: float) -> "Comparison":
    from excise.meter.results import kind_of, load_latencies, load_pools  # noqa: PLC0415 - see above
    from excise.stats.comparison import compare_latencies, compare_pools, compare_runs  # noqa: PLC0415
    from excise.stats.run import Run  # noqa: PLC0415

    kinds = (kind_of(before), kind_of(after))
    if len(set(kinds)) > 1:
        raise SpecError(f"{before} has {kinds[0]} results and {after} {kinds[1]} results: only the same kind can be compared")
    if kinds[0] == "latency":
        return compare_latencies(load_latencies(before)[1], load_latencies(after)[1], threshold)
    if kinds[0] == "pool":
        return compare_pools(load_pools(before)[1], load_pools(after)[1], threshold)
    return compare_runs(Run.read(before), Run.read(after), threshold)


def _addresses(path: Path, first: str, second: str, threshold: float) -> "Comparison":
    from excise.meter.results import kind_of, load_latencies, load_pools  # noqa: PLC0415 - see above
    from excise.stats.comparison import compare_claims, compare_operations, compare_rows  # noqa: PLC0415
    from excise.stats.run import Run  # noqa: PLC0415

    if kind_of(path) == "latency":
        return compare_operations(load_latencies(path)[1], first, second, threshold)
    if kind_of(path) == "pool":
        return compare_claims(load_pools(path)[1], first, second, threshold)
    return compare_rows(Run.read(path), first, second, threshold)


def _append_summary(text: str) -> None:
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        raise SpecError("--github writes to the file that $GITHUB_STEP_SUMMARY names, and it is not set: leave --github out")
    with Path(name).open("a", encoding="utf-8") as file:
        file.write(text)
