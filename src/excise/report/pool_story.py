"""The sections of a report about pools: of measured plans, or of one load that `excise pool` ran."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.loading.records import SCHEMA, Loaded
from excise.loading.tally import Tally
from excise.meter.pool_records import PoolHeader, PoolTrial
from excise.report import tables
from excise.report.figures.bursts import burst
from excise.report.figures.hits import Found, of_trials, over_time
from excise.report.figures.mixture import mixture
from excise.report.figures.warm import by_depth
from excise.report.numbers import duration, short
from excise.report.parts import Part, Table
from excise.report.pool_words import every_row
from excise.report.pools import pool_notes, pool_sentence
from excise.report.story import METHOD, Section
from excise.stats.pools import rows

_METHOD = (
    METHOD[0],
    "A claim is timed from when it was to be made, whoever kept it waiting, to the start state: the image's step, the clone "
    "and the install are done. Core-seconds are the whole host's, from the first intended start until everything was closed "
    "and the pool had nothing more to do; what filling it took stands apart.",
    METHOD[2],
)


@dataclass(frozen=True, kw_only=True)
class Pools:
    """A run of pools."""

    header: PoolHeader
    trials: tuple[PoolTrial, ...]


def pool_story(runs: Sequence[Pools]) -> list[Section]:
    """Each run's figures and rows, then where the numbers are from."""
    told = [_run(run) for run in runs]
    names = [part.name for section in told for part in section.parts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"two of the runs tell of {twice[0]}, and runs are never pooled: report each alone")
    return [*told, *map(_origin, runs)]


def pools_sentence(runs: Sequence[Pools]) -> str:
    """Of several runs that which compares pools with each other; else the first."""
    mixed = [run for run in runs if any(trial.cell.memory_percent is not None for trial in run.trials)]
    return pool_sentence((mixed or runs)[0].trials)


def _run(run: Pools) -> Section:
    found = rows(run.trials, run.header.plan.cells)
    name = _named(run)
    parts: list[Part] = [*by_depth(found), *burst(found), *mixture(found, run.trials), *of_trials(run.trials)]
    every = every_row(found)
    every = msgspec.structs.replace(every, name=f"{name}-rows", title=f"Every row of {name}")
    title = f"Claims: the plan {name}"
    return Section(place=name, title=title, parts=parts, folded=[every], notes=pool_notes(run.header, run.trials), headed=True)


def _named(run: Pools) -> str:
    """The plan's name as part of a file's: a plan may be a file of somebody's own."""
    return re.sub(r"[^a-z0-9]+", "-", Path(run.header.plan.name).stem.lower()).strip("-") or "claims"


def _origin(run: Pools) -> Section:
    header, plan, name = run.header, run.header.plan, _named(run)
    table = tables.origin(header.provenance, plan.seed, plan.image, header.id)
    return Section(
        place=f"{name}-method",
        title=f"Method, and how to run {name} again",
        points=_METHOD,
        tables=[msgspec.structs.replace(table, name=f"{name}-origin")],
        commands=[f"excise measure --plan {plan.name or 'warm'}"],
    )


def read_load(path: Path) -> Loaded:
    """The record that `excise pool --json` wrote."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Loaded)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is no record of `excise pool --json`, nor a results directory: {error}") from None
    if (found.kind, found.schema) != ("pool-load", SCHEMA):
        raise SpecError(f"{path} is a {found.kind} of schema {found.schema}: use the excise that wrote it")
    return found


def load_sentence(load: Loaded) -> str:
    tally = _tally(load)
    p50, p95 = (tally.quantile_s(q) for q in (0.5, 0.95))
    if p50 is None or p95 is None:
        return f"No claim on {load.address} succeeded under {load.load}."
    return f"Under {load.load} a claim on {load.address} takes {duration(p50)} at the median and {duration(p95)} at p95."


def load_story(load: Loaded) -> list[Section]:
    """What its claims found over time, what each kind took, and what the pool was at the end."""
    hits = [Found(at_s=one.at_s, hit="failed" if one.failure else one.hit) for one in load.claims]
    held, spent = _numbers(load.figures), load.spent
    cpu = (("this process", spent.own_s), ("its children", spent.children_s), ("the whole host", spent.host_s))
    rows_ = (*((f"core-seconds of {who}", short(value)) for who, value in cpu), *held)
    end = Table(name="pool-at-the-end", title="The pool at the end", heads=("figure", "value"), rows=rows_)
    reasons = sorted({one.failure for one in load.claims if one.failure} | set(load.losses))
    early = ["The load was ended early: what is here is of the claims until then."] if load.ended_early else []
    return [
        Section(
            place="load",
            title=f"{load.load} on {load.address}",
            text=early,
            parts=over_time("load-hits", hits),
            tables=[_by_hit(load), end],
            notes=reasons,
            commands=[f"excise pool '{load.address}' --load {load.load} --for {load.for_s:g}s --seed {load.seed}"],
            headed=True,
        )
    ]


def _tally(load: Loaded) -> Tally:
    tally = Tally()
    for claim in load.claims:
        tally.claimed(claim)
    return tally


def _by_hit(load: Loaded) -> Table:
    tally = _tally(load)
    body: list[tuple[str, ...]] = []
    for hit, count in (*tally.hits().items(), ("all", sum(tally.hits().values()))):
        times = [tally.quantile_s(q, None if hit == "all" else hit) for q in (0.5, 0.95, 1.0)]
        body.append((hit, str(count), *("-" if one is None else short(one * 1e3) for one in times)))
    heads = ("found", "claims", "p50 (ms)", "p95 (ms)", "longest (ms)")
    return Table(name="load-claims", title="Claims by what they found", heads=heads, rows=tuple(body))


def _numbers(figures: Any, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}, ")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((f"{prefix}{name}".replace("_", " "), short(value) if isinstance(value, float) else f"{value:,}"))
    return found
