"""From one rollout to a million: what a rollout costs as a line in its length, and what becomes of it at scale.

W = N x T / 3600 is hours of one worker that does N rollouts of mean time T in turn. T is composed from a fixed part (start,
cleanup) and a part for each action, so that it is known for lengths that were not measured, and marked as composed there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from excise.errors import SpecError
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks, Scale, Sums

MILLION = 1_000_000
LONG = 150
"""Actions of the paper's long trajectory."""
HOUR_S = 3600.0


def worker_hours(total: Estimate, rollouts: float = MILLION) -> Estimate:
    """W = N x T / 3600: hours of one worker that does `rollouts` rollouts of mean time `total` in turn."""
    return total.scaled(rollouts / HOUR_S)


def effective_s(total_s: float, failure_rate: float, failed_s: float) -> float:
    """Seconds a rollout that succeeds costs, with those that fail before it: T + p / (1 - p) x T_fail."""
    return total_s + failure_rate / (1 - failure_rate) * failed_s


def workers(total: Estimate, rollouts: float, deadline_s: float) -> Estimate:
    """How many workers finish in time. Each does whole rollouts; infinitely many where one takes longer than there is."""
    if not deadline_s > 0:
        raise SpecError(f"a deadline of {deadline_s:g} s leaves no time: give one above 0")

    def needed(total_s: float) -> float:
        # A hair more, so that a rollout that divides the deadline evenly is not lost to rounding.
        each = math.floor(deadline_s / total_s * (1 + 1e-12)) if total_s > 0 else math.inf
        return math.ceil(rollouts / each) if each else math.inf

    return total.through(needed)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's seconds by its length: what it costs once, and for each action."""

    fixed_s: float
    per_action_s: float

    def at(self, actions: float) -> float:
        return self.fixed_s + actions * self.per_action_s


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is projected to. The defaults are the paper's: a million rollouts of 150 actions, one sandbox each."""

    actions: int = LONG
    rollouts: float = MILLION
    think_s: float = 0.0
    """After each action the worker waits so long for the model: neither tax nor work, but the worker is taken."""
    reuse: int = 1
    """Rollouts in one sandbox: start and cleanup are paid once for all of them. Resetting in between is `reset_s`."""
    reset_s: float = 0.0
    failure_rate: float = 0.0
    failed_share: float = 1.0
    """How far a rollout gets before it fails; 1: to its end, the worst."""

    def __post_init__(self) -> None:
        if self.actions < 1:
            raise SpecError(f"actions={self.actions}: a rollout has at least one action")
        if not 0 < self.rollouts < math.inf:
            raise SpecError(f"rollouts={self.rollouts:g}: project to at least one rollout")
        if self.reuse < 1:
            raise SpecError(f"reuse={self.reuse}: a sandbox serves at least one rollout")
        if not 0 <= self.failure_rate < 1:
            raise SpecError(f"a failure rate of {self.failure_rate:g} leaves no success: give one from 0 to below 1")
        if not all(0 <= one < math.inf for one in (self.think_s, self.reset_s, self.failed_share)):
            raise SpecError("think time, reset time and the failed share are numbers of 0 or more")

    def seconds(self, line: Line) -> float:
        """What one rollout that succeeds takes."""
        resets_s = self.reset_s * (1 - 1 / self.reuse)
        once_s = line.fixed_s / self.reuse + resets_s + self.actions * (line.per_action_s + self.think_s)
        return effective_s(once_s, self.failure_rate, self.failed_share * once_s)


@dataclass(frozen=True)
class Costs:
    """A row's line, with the blocks it was measured in; without blocks a number that somebody gave."""

    line: Line
    measured: int | None = None
    """Actions of the trials it is from; other lengths are composed. None: nobody measured it."""
    blocks: Blocks | None = None
    """Columns rollouts, actions, fixed and acting: see `line_of`."""

    def estimate(self, of: Callable[[Line], float], scale: Scale = POSITIVE) -> Estimate:
        """Any function of the line, with the interval carried through it."""
        if self.blocks is None:
            return Estimate(of(self.line))
        return self.blocks.estimate(lambda sums: of(line_of(sums)), scale)


def line_of(sums: Sums, prefix: str = "") -> Line:
    """The line through the means: the measured length's own total lies on it."""
    return Line(
        fixed_s=sums[prefix + "fixed"] / sums[prefix + "rollouts"],
        per_action_s=sums[prefix + "acting"] / sums[prefix + "actions"],
    )


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, projected."""

    scenario: Scenario
    composed: bool
    """True: the trials had another length; start + actions x mean action + cleanup."""
    total_s: Estimate
    """Of a rollout that succeeds, failed ones paid for."""
    hours: Estimate
    """Worker-hours of all."""


def project(costs: Costs, scenario: Scenario | None = None) -> Projection:
    """`costs` in `scenario`, the paper's if none is given."""
    scenario = Scenario() if scenario is None else scenario
    total = costs.estimate(scenario.seconds)
    return Projection(
        scenario=scenario,
        composed=costs.measured is not None and costs.measured != scenario.actions,
        total_s=total,
        hours=worker_hours(total, scenario.rollouts),
    )


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """How worker-hours go with one factor, the others as in the scenario."""

    factor: str
    """A field of Scenario."""
    points: tuple[tuple[float, Projection], ...]


SENSITIVITY: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("actions", (50, 100, 150, 200, 300)),
    ("rollouts", (1e5, 1e6, 1e7)),
    ("think_s", (0.0, 1.0, 5.0, 20.0)),
    ("reuse", (1, 2, 8, 32)),
    ("failure_rate", (0.0, 0.01, 0.05, 0.2)),
)


def sensitivity(
    costs: Costs, scenario: Scenario | None = None, over: Sequence[tuple[str, Sequence[float]]] = SENSITIVITY
) -> tuple[Curve, ...]:
    """One factor at a time, from `scenario`."""
    scenario = Scenario() if scenario is None else scenario
    return tuple(
        Curve(
            factor=factor,
            points=tuple((value, project(costs, msgspec.structs.replace(scenario, **{factor: value}))) for value in values),
        )
        for factor, values in over
    )
