"""`excise report`: results as a page, figures, tables and traces."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from excise.cli.sentences import say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.report.bundle import Latencies
    from excise.report.pool_story import Pools
    from excise.stats.run import Run

app = App(
    name="report",
    help_epilogue="""\
The directory holds index.html, which loads nothing from anywhere, share.png, figures/ as SVG and PNG, tables/ as Markdown \
and CSV. An earlier report in it is replaced; anything else there is refused. The page needs the extra: \
pip install 'excise[report]'; --table, --markdown and --trace do not.

Examples:
  excise report results/docker
  excise report results/docker -o docker-report
  excise report results/rollouts results/bench
  excise report results/warm results/burst results/mixed
  excise report results/docker --markdown
  excise report results/docker --pack shared
  excise report results/docker --trace 3:docker -o trace.json""",
)


@app.default
def report(
    *results: Path,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    table: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    markdown: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    trace: str | None = None,
    pack: Path | None = None,
) -> int:
    """Write a report of results that were measured: a page, its figures and its tables.

    Parameters
    ----------
    results
        A results directory; or one of rollouts and one of single operations (--plan bench) of the same host; or several of
        claims (--plan warm, burst, mixed); or a file that `excise pool --json` wrote.
    out
        The directory to write; report/ inside the first results directory if left out. Of --trace: a file.
    table
        Print the table instead.
    markdown
        Print the table as Markdown instead.
    trace
        Write one block's spans, BLOCK or BLOCK:ADDRESS, as Chrome trace JSON instead; Perfetto opens it.
    pack
        A directory to give away: the results, compressed, with the report inside. Every command reads it like the results.
    """
    if not results:
        raise SpecError("name a results directory, as in `excise report results/docker`")
    if trace is not None:
        return _trace(results, trace, out)
    from excise.report.sources import read, read_pools  # noqa: PLC0415 - `excise report --help` does not pay for it

    if pack is not None:
        results = (_packed(results, pack),)
    if results[0].is_file():
        return _load(results, out)
    pools = read_pools(results)
    if pools is not None:
        return _pools(results, pools, out, table=table or markdown)
    run, latencies = read(results)
    if table or markdown:
        _print(run, latencies, markdown=markdown)
        return 0
    from excise.report.bundle import write  # noqa: PLC0415 - see above

    place = out if out is not None else results[0] / "report"
    sentence = write(place, run, latencies)
    sys.stdout.write(f"{sentence.replace(chr(0xA0), ' ')}\n{place / 'index.html'}\n")
    return 0


def _pools(results: Sequence[Path], pools: "Sequence[Pools]", out: Path | None, *, table: bool) -> int:
    if table:
        from excise.report.pools import table as as_table  # noqa: PLC0415 - see above

        sys.stdout.write("\n".join(as_table(one.header, one.trials) for one in pools))
        return 0
    from excise.report.bundle import write_pools  # noqa: PLC0415 - see above

    place = out if out is not None else results[0] / "report"
    sys.stdout.write(f"{write_pools(place, pools)}\n{place / 'index.html'}\n")
    return 0


def _load(results: Sequence[Path], out: Path | None) -> int:
    """What `excise pool --json` wrote."""
    from excise.report.bundle import write_load  # noqa: PLC0415 - see above
    from excise.report.pool_story import read_load  # noqa: PLC0415

    if len(results) > 1:
        raise SpecError("a load is reported alone: name one file")
    place = out if out is not None else results[0].with_name(f"{results[0].stem}-report")
    sys.stdout.write(f"{write_load(place, read_load(results[0]))}\n{place / 'index.html'}\n")
    return 0


def _packed(results: Sequence[Path], out: Path) -> Path:
    from excise.meter.packed import pack  # noqa: PLC0415 - see above

    if len(results) > 1:
        raise SpecError("a bundle is of one run: name one results directory")
    try:
        pack(results[0], out)
    except OSError as error:
        raise SpecError(
            f"the bundle cannot be written to {out}: {error.strerror}; name another directory with --pack"
        ) from error
    return out


def _print(run: "Run | None", latencies: "Latencies | None", *, markdown: bool) -> None:
    if run is not None and markdown:
        from excise.report.markdown import markdown as as_markdown  # noqa: PLC0415 - see above

        sys.stdout.write(as_markdown(run))
    elif run is not None:
        from excise.report.terminal import show  # noqa: PLC0415 - see above

        show(run, sys.stdout)
    if latencies is not None:
        from excise.report.latency import table  # noqa: PLC0415 - see above

        sys.stdout.write(("\n" if run is not None else "") + table(latencies.header, latencies.trials))


def _trace(results: Sequence[Path], asked: str, out: Path | None) -> int:
    import msgspec  # noqa: PLC0415 - see above

    from excise.meter.results import scan  # noqa: PLC0415
    from excise.report.chrome import chosen, events  # noqa: PLC0415

    if len(results) > 1:
        raise SpecError("a trace is of one run: name one results directory")
    _, trials = scan(results[0])
    text = msgspec.json.encode(events(chosen(trials, asked))) + b"\n"
    if out is None:
        sys.stdout.write(text.decode())
        return 0
    try:
        out.write_bytes(text)
    except OSError as error:
        raise SpecError(f"the trace cannot be written to {out}: {error.strerror}; name a file with -o") from None
    say(f"{out} opens in Perfetto (https://ui.perfetto.dev) or chrome://tracing")
    return 0
