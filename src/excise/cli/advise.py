"""`excise advise`: which substrate, path, start state and pool cost least, from what was measured here."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

if TYPE_CHECKING:
    from excise.economics.measured import Measured

app = App(
    name="advise",
    help_epilogue="""\
Costs are worker-hours, or what your prices make of them; design/advise.md has the model and how well it predicts. Nothing is \
guessed: what was not measured is listed as such, and isolation is never traded for cost.

Examples:
  excise measure --plan isolation                            measure first; it takes a while
  excise advise --actions 150 --parallel 64
  excise advise --actions 30 --work 20 --kernel own
  excise advise --worker 0.05 --waiting 2.5 --parallel 256   prices of an hour: a worker's, and what stands still meanwhile
  excise advise --isolates files,processes,network --resets 4 --json
  excise advise --results docs/results/paper docs/results/pool/warm
  excise advise --table > docs/economics.md""",
)


@app.default
def advise(
    *,
    actions: int = 150,
    work: float | None = None,
    think: float = 0.0,
    resets: float = 0.0,
    starts_per_hour: float | None = None,
    parallel: int = 1,
    rollouts: float = 1000.0,
    kernel: Literal["shared", "intercepted", "own"] = "shared",
    isolates: str = "files,processes",
    leftovers: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    worker: float = 1.0,
    waiting: float = 0.0,
    ahead: float | None = None,
    gib: float | None = None,
    workload: str | None = None,
    results: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=True, show_default=False)] = (),
    table: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Rank what was measured on this machine by what your rollouts would cost on it, and say where that changes.

    Parameters
    ----------
    actions
        Actions of a rollout.
    work
        Seconds that a rollout's actions work by themselves; as the measured workload's if left out.
    think
        Seconds that a worker waits for the model after each action.
    resets
        How often a rollout goes back to its start state before its end.
    starts_per_hour
        Start states asked for in an hour; if left out, as many as --parallel workers that never pause ask for.
    parallel
        Rollouts at once.
    rollouts
        Rollouts of the whole phase: what is made once is shared among them.
    kernel
        At least: shared with the host, intercepted, or its own.
    isolates
        What a sandbox must not see or touch of another: files, processes, network, ipc, users.
    leftovers
        A rollout may find what an earlier one left outside of the repository: git will do for a reset.
    worker
        What an hour of a worker costs.
    waiting
        What an hour of a rollout that waits for infrastructure costs: its share of GPUs that stand still.
    ahead
        What an hour of a core that makes sandboxes ahead costs; as a worker's if left out.
    gib
        What a GiB costs that idle sandboxes hold for an hour; a worker's, times cores for each GiB, if left out.
    workload
        Whose rows to advise from; if left out, the one that most rows are of.
    results
        Results directories, directories of them, files of bench/density.py and bench/observe.py; else the newest of this host.
    table
        Print isolation and economics of everything measured as one Markdown table instead.
    json
        Print the advice as JSON.
    """
    from excise.advising import known, measured_here  # noqa: PLC0415 - `excise advise --help` does not pay for it

    found = measured_here(results)
    if table:
        return _table(found, json=json)
    from excise.economics.advice import advise as advised  # noqa: PLC0415 - see above
    from excise.economics.demand import Demand, Prices  # noqa: PLC0415

    demand = Demand(
        actions=actions,
        work_s=work,
        think_s=think,
        resets=resets,
        starts_per_hour=starts_per_hour,
        parallel=parallel,
        rollouts=rollouts,
        kernel=kernel,
        isolates=frozenset(word.strip() for word in isolates.split(",") if word.strip()),  # pyright: ignore[reportArgumentType]
        leftovers=leftovers,
        prices=Prices(worker=worker, waiting=waiting, ahead=ahead, gib=gib),
    )
    advice = advised(found, demand, workload=workload, known=known())
    if json:
        sys.stdout.write(_json(advice))
    else:
        from excise.report.advised import text  # noqa: PLC0415 - see above

        sys.stdout.write(text(advice))
    return 0


def _table(found: "Measured", *, json: bool) -> int:
    from excise.advising import known  # noqa: PLC0415 - see above
    from excise.economics.table import rows  # noqa: PLC0415
    from excise.report.economics import markdown  # noqa: PLC0415

    made = rows(found, known())
    sys.stdout.write(_json(made) if json else markdown(made, found))
    return 0


def _json(found: object) -> str:
    """The same numbers for programs: infinity, which JSON does not have, is null."""
    return msgspec.json.format(msgspec.json.encode(found, order="deterministic"), indent=2).decode() + "\n"
