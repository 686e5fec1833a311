"""A report's sections in the order they are told, before anything is drawn or laid out."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from excise.meter.latency_records import LatencyHeader, LatencyTrial
from excise.meter.privacy import without_home
from excise.report import paper, tables
from excise.report.columns import columns
from excise.report.facts import Facts, isolates
from excise.report.figures import decomposition, growth, ladder, starts
from excise.report.figures.factors import factors
from excise.report.figures.load import arrivals
from excise.report.figures.orchestration import orchestration
from excise.report.latency import latency_notes, latency_table
from excise.report.notes import notes
from excise.report.numbers import duration, interval, short
from excise.report.parts import Part, Table
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.latency import rows as latency_rows
from excise.stats.projection import LONG, MILLION
from excise.stats.whatif import WhatIf, what_ifs

METHOD = (
    "A block is every cell once, in seeded random order, on one host; only whole blocks are in the tables, and none of their "
    "trials is left out. The first warms up and is kept apart.",
    "T = start + set-up (or reset) + sum over actions of (dispatch + slowdown + work) + cleanup, on one monotonic clock. Work "
    "is what the same action takes on the reference in the same block; tax = T - work. What the terms leave is told "
    "as unattributed.",
    "The block is the unit of every interval: rollouts at once are one observation. "
    "p50 and p95 have intervals by order statistics, means and ratios by leaving out each block in turn (jackknife, "
    "Student's t); all are 95 %. A quantile with too few trials for an interval is not given; a mean of fewer than "
    f"{FEWEST_BLOCKS} blocks is given without one.",
    "A trial that gave another answer than everybody else's, or that the machinery lost, is a failure with a reason. Its time "
    "is in a row's worker-h, and in no other number.",
    "Before each trial the host is watched while nothing of ours runs. Trials after a noisy window stay in the main table.",
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    place: str
    title: str
    text: Sequence[str] = ()
    points: Sequence[str] = ()
    tables_first: Sequence[Table] = ()
    parts: Sequence[Part] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    folded: Sequence[Table] = ()
    """Long tables that a reader opens."""
    commands: Sequence[str] = ()
    calculator: bool = False
    headed: bool = False
    """A figure has its title above it even where it is the only one."""


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what would help most."""

    saving: str
    sentence: str
    detail: str
    command: str


def helps(facts: Facts) -> list[Help]:
    """Changes to the dearest row that isolates, from all rows of the same workload; none that has no interval."""
    now = max(facts.isolated, key=lambda row: row.total_s.value if row.total_s else 0.0, default=None)
    if now is None or not isolates(now.address):
        return []
    found = what_ifs([row for row in facts.rows if row.cell.workload == facts.workload], now)
    return [_help(one) for one in found if one.saving_hours.low is not None]


def _help(one: WhatIf) -> Help:
    hours = one.saving_hours
    return Help(
        saving=f"{short(hours.value)} worker-hours less [{interval(hours)}]:",
        sentence=one.sentence,
        detail=f"{duration(one.saving_s.value)} a rollout, {100 * one.share:.0f} % of it.",
        command=one.command,
    )


def scenario_words() -> str:
    return f"{MILLION:,} rollouts of {LONG} actions"


def story(facts: Facts) -> list[Section]:
    """Of a run of rollouts."""
    run = facts.run
    quiet = [tables.every_row(run, run.quiet_rows)] if run.noisy else []
    return [
        Section(place="where", title="Where you pay", parts=[decomposition.decomposition(facts)]),
        *_orchestration(facts),
        *_journey(facts),
        Section(place="actions", title="The action ladder", parts=[ladder.rungs(facts)]),
        _break_even(facts),
        Section(place="calculator", title="Your own numbers", calculator=True),
        Section(
            place="figures",
            title="The figures of the paper, from this run",
            parts=[
                starts.by_tier(facts),
                starts.distribution(facts),
                decomposition.composition(facts),
                growth.completion(facts),
                growth.scale_up(facts),
            ],
        ),
        *_factors(facts),
        Section(place="tables", title="The tables of the paper, from this run", tables=_paper(facts)),
        Section(
            place="rows",
            title="Every row",
            tables_first=[tables.every_row(run)],
            tables=tables.control(run),
            folded=quiet,
            notes=notes(run, columns(run), page=True),
        ),
        _missing(facts),
        _method(facts),
    ]


def _orchestration(facts: Facts) -> list[Section]:
    found = orchestration(facts)
    return [Section(place="control-plane", title="What the control plane takes", parts=found)] if found else []


def _journey(facts: Facts) -> list[Section]:
    found = tables.journey(facts.run)
    return [Section(place="journey", title="What distance takes", tables=found)] if found else []


def _break_even(facts: Facts) -> Section:
    pairs = tables.break_evens(facts)
    told = "From which length on one is cheaper than another: start and cleanup are paid once, dispatch with every action."
    return Section(
        place="break-even",
        title="Break-even",
        text=[told],
        tables_first=[pairs] if pairs else [],
        parts=[growth.by_length(facts)],
    )


def _factors(facts: Facts) -> list[Section]:
    found: list[Part] = [*factors(facts), *arrivals(facts)]
    if not found:
        return []
    told = "One factor at a time, all else the same, in the same blocks; each table has the ratio to the first level."
    return [Section(place="factors", title="What else changes it", text=[told], parts=found, headed=True)]


def _paper(facts: Facts) -> list[Table]:
    return [paper.amplification(facts), paper.whole_rollouts(facts)]


def _missing(facts: Facts) -> Section:
    failed, left_out = tables.failures(facts.run), tables.skipped(facts.run)
    text: list[str] = []
    if failed is None:
        attempted = sum(row.attempted for row in facts.rows)
        text.append(f"All {attempted} trials succeeded." if attempted else "No trial was made.")
    if left_out is None:
        text.append("Everything that was asked for ran.")
    found = [one for one in (failed, left_out) if one is not None]
    return Section(place="failures", title="Failures and what is missing", text=text, tables=found)


def _method(facts: Facts) -> Section:
    header = facts.run.header
    where = without_home(str(facts.run.path))
    return Section(
        place="method",
        title="Method, provenance, and how to run it again",
        points=METHOD,
        tables=[tables.origin(header.provenance, header.plan.seed, header.plan.image, header.id)],
        commands=[
            f"excise measure --like {where}    # the same plan on your machine",
            f"excise report {where}            # this page",
            f"excise project {where} --actions {LONG} --rollouts {MILLION} --deadline 24h",
        ],
    )


def latency_story(header: LatencyHeader, trials: Sequence[LatencyTrial], *, alone: bool) -> list[Section]:
    """Of a run of single operations; `alone`: there is no run of rollouts beside it, which would tell the rest."""
    found = [
        Section(
            place="operations",
            title="Single operations above the floor",
            parts=[ladder.latencies(header, latency_rows(trials))],
            tables=[latency_table(trials)],
            notes=latency_notes(header, trials),
        )
    ]
    if alone:
        floor = (
            "The floor is the same program, spawned by its host path without pipes, before each sample. Every sample prints a "
            "nonce that is checked. A block is every cell, in seeded random order."
        )
        origin = tables.origin(header.provenance, header.plan.seed, header.plan.image, header.id)
        again = ["excise measure --plan bench"]
        found.append(
            Section(
                place="method",
                title="Method, provenance, and how to run it again",
                points=[floor, METHOD[2]],
                tables=[origin],
                commands=again,
            )
        )
    return found
