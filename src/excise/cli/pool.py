"""`excise pool`: a warm pool under open-loop load, with what it hits, what it holds and what it wastes."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from excise.address import parse
from excise.cli.pool_options import arrivals, place, seconds, specs
from excise.cli.sentences import FAILED, say
from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.cli.pool_watch import Watch

app = App(
    name="pool",
    help_epilogue="""\
Rollouts arrive when the load says, whether or not those before them have ended, and are timed from when they were to begin: \
a pool that stalls makes those behind it wait, and that is counted. The seed fixes every arrival.

A load is poisson:RATE (arrivals a second), burst:N (all at once), burst:N/EVERY (again and again) or replay:FILE: lines as \
{"at_s": 0.5, "spec": "NAME", "hold_s": 2, "owner": "ann"}, whose spec is a name or a spec itself; or a results directory, \
whose arrivals are taken. Without --spec or --specs a built-in mix is asked for, whose clones and installs sleep. \
pool:fake runs on a virtual clock: a minute passes at once.

The table goes to stdout at the end, a live one to stderr. Ctrl-C ends it early and prints what there is. Exit code: 1 when a \
rollout got no sandbox or lost it; 2 when the request is wrong; 130 after Ctrl-C.

Examples:
  excise pool pool:fake --load poisson:4
  excise pool 'pool:namespace?pool.count=16' --load burst:16/20s --for 2m
  excise pool pool:docker --specs tasks.toml --load poisson:0.5 --hold 30s --metrics 9400
  excise pool pool:namespace --load replay:monday.jsonl --json monday-pool.json""",
)


@app.default
def pool(
    address: str,
    /,
    *,
    load: str = "poisson:2",
    spec: Path | None = None,
    specs_: Annotated[Path | None, Parameter(name="--specs")] = None,
    mix: int = 12,
    zipf: float = 0.8,
    image: str = "host",
    for_: Annotated[str, Parameter(name="--for")] = "60s",
    hold: str = "2s",
    run: str = "true",
    wait: str = "120s",
    seed: int = 1,
    expect: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    metrics: str | None = None,
    json: Path | None = None,
) -> int:
    """Run a warm pool under load, and show what its claims found and what it costs.

    Parameters
    ----------
    address
        The pool: pool: and a substrate, with options as ?pool.count=64.
    load
        When rollouts arrive: poisson:RATE, burst:N, burst:N/EVERY or replay:FILE.
    spec
        A JSON or TOML file with the one spec that all ask for.
    specs_
        A file of specs with names and weights: [[specs]] of TOML, or lines of JSON.
    mix
        How many specs the built-in mix has.
    zipf
        How unlike the built-in mix's specs are asked for: 0 is all alike.
    image
        The root filesystem of the built-in mix.
    for_
        How long rollouts arrive; those that have begun are run to their end.
    hold
        How long a rollout keeps its sandbox.
    run
        What each rollout runs in it first; an empty text for nothing.
    wait
        How long a rollout waits for its sandbox before that is a failure.
    seed
        Of the arrivals and what they ask for.
    expect
        Tell the pool beforehand what is coming and when, as a trainer can.
    metrics
        Serve Prometheus metrics at this port of this machine, or at HOST:PORT.
    json
        Write every claim, a sample a second and the pool's figures to this file.
    """
    if "pool" not in parse(address).wrappers:
        raise SpecError(f"{address} is no pool: write pool:{address}")
    served = None if metrics is None else place(metrics)
    for_s, hold_s = seconds(for_, "--for", least_s=0.001), seconds(hold, "--hold")
    wait_s = seconds(wait, "--wait", least_s=0.001)
    wanted = specs(spec, specs_, mix, zipf, image)
    coming = arrivals(load, wanted, for_s=for_s, hold_s=hold_s, seed=seed)
    _refuse_unwritable(json)
    from excise.cli.pool_watch import Asked, Watch, shown  # noqa: PLC0415 - `excise pool --help` does not pay for it

    named = f"replay:{Path(load.partition(':')[2]).name}" if load.startswith("replay:") else load
    watch = Watch(
        Asked(
            address=address,
            load=named,
            for_s=for_s,
            hold_s=hold_s,
            seed=seed,
            wait_s=wait_s,
            script=run or None,
            expect=expect,
            metrics=served,
        )
    )
    early, kept = True, False
    try:
        with shown() as show:
            _runner(address, served is not None)(watch.run(coming, show))
        early = False
    finally:
        kept = _told(watch, json, early=early)
    return FAILED if watch.tally.failures or watch.tally.lost or not kept else 0


def _runner(address: str, served: bool) -> Callable[[Coroutine[Any, Any, None]], None]:
    """The fake lives on a virtual clock, unless somebody outside is to see it."""
    if parse(address).name != "fake" or served:
        return asyncio.run
    from excise.substrates.fake import virtual_time  # noqa: PLC0415 - only the fake needs it

    return virtual_time.run


def _told(watch: "Watch", json: Path | None, *, early: bool) -> bool:
    """Print and keep what there is, also of a load that was interrupted; False if it could not be kept."""
    if watch.figures is None:
        return True  # It never began.
    from rich.console import Console  # noqa: PLC0415 - see above

    from excise.cli.pool_table import table  # noqa: PLC0415

    # A file is no window: nothing in it is broken into lines.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200)
    console.print(table(watch.title, watch.tally, watch.figures, watch.spent))
    if json is None:
        return True
    import msgspec  # noqa: PLC0415 - see above

    try:
        json.write_bytes(msgspec.json.encode(watch.record(ended_early=early)) + b"\n")
    except OSError as error:
        say(f"the record cannot be written to {json}: {error.strerror}; name another file with --json")
        return False
    return True


def _refuse_unwritable(path: Path | None) -> None:
    """Before a minute is spent on what cannot be kept."""
    if path is not None and not path.absolute().parent.is_dir():
        raise SpecError(f"--json {path}: there is no directory {path.absolute().parent}; make it, or name another file")
    if path is not None and path.is_dir():
        raise SpecError(f"--json {path} is a directory: name a file in it")
