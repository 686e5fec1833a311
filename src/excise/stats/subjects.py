"""What is projected: the rows of a run, or times that somebody gives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from excise.errors import SpecError
from excise.stats.projection import Costs, Line, Scenario
from excise.stats.rows import Row
from excise.stats.run import Run


@dataclass(frozen=True)
class Subject:
    """One line of a projection."""

    name: str
    costs: Costs
    scenario: Scenario
    """With its own failure rate, if that was measured."""
    workload: str = ""
    """What its rollouts do; only those that do the same can break even."""
    whole: bool = False
    """Only a whole rollout's time is known: nothing can be said of other lengths, or of a start that is shared."""


def of_run(run: Run, scenario: Scenario, *, failing: bool) -> tuple[Subject, ...]:
    """Every row with a successful trial; `failing`: as often as it did, in place of the scenario's failure rate."""
    several = len({row.cell.workload for row in run.rows}) > 1
    found = tuple(
        Subject(
            f"{row.name} on {row.cell.workload}" if several else row.name,
            costs,
            _as_it_failed(row, scenario) if failing else scenario,
            row.cell.workload,
        )
        for row in run.rows
        if (costs := row.costs) is not None
    )
    if not found:
        raise SpecError(f"{run.path} has no whole block with a successful trial: there is nothing to project from")
    return found


def _as_it_failed(row: Row, scenario: Scenario) -> Scenario:
    if row.success is None or row.failed_s is None or not row.total_s:
        return scenario
    rate, share = 1 - row.success.value, row.failed_s / row.total_s.value
    return msgspec.structs.replace(scenario, failure_rate=rate, failed_share=share)


def given(seconds: Sequence[float], per_action_ms: Sequence[float], scenario: Scenario) -> tuple[Subject, ...]:
    """Of times on a command line: whole rollouts, actions, or both in pairs."""
    if not all(0 <= time < math.inf for time in (*seconds, *per_action_ms)):
        raise SpecError("a time is a number of 0 or more: give such --seconds and --per-action-ms")
    if not per_action_ms:
        if scenario.reuse > 1:
            raise SpecError("--reuse shares a start: give that as --seconds and the rest as --per-action-ms")
        return tuple(
            Subject(f"{whole_s:g} s", Costs(Line(fixed_s=whole_s, per_action_s=0.0)), scenario, whole=True)
            for whole_s in seconds
        )
    if seconds and len(seconds) != len(per_action_ms):
        raise SpecError("give as many --seconds as --per-action-ms, or only one of the two")
    pairs = zip(seconds or [0.0] * len(per_action_ms), per_action_ms, strict=True)
    return tuple(
        Subject(
            (f"{fixed_s:g} s + " if seconds else "") + f"{each_ms:g} ms an action",
            Costs(Line(fixed_s=fixed_s, per_action_s=each_ms / 1e3)),
            scenario,
        )
        for fixed_s, each_ms in pairs
    )
