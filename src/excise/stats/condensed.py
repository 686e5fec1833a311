"""One trial without its spans: what the statistics need of it, a hundredth of the memory."""

from array import array
from collections.abc import Mapping

import msgspec

from excise.errors import SpecError
from excise.meter.records import IDENTITY, JOURNEY, NULL, RESET, STAGES, THINK, Cell, Quiet, Trial
from excise.trace import SETUP

NO_CLOCK = -1
"""In `inside_ns`: no clock ran inside for this action."""
YEAR_NS = 365 * 86_400 * 10**9
"""No time of a rollout is as long; sums of such times stay exact enough to divide by."""


class Condensed(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of spans by what they are, and arrays of those that are paired with another trial's."""

    cell: Cell
    block: int
    lane: int
    warmup: bool
    noisy: bool
    rerun: bool
    control: bool = False
    intended_ns: int = 0
    late_ns: int = 0
    failure: str | None
    wall_ns: int
    """Without what the instrument did meanwhile."""
    start_ns: int
    setup_ns: int = 0
    """In results of schemas before 4 it is part of `start_ns`."""
    stages_ns: Mapping[str, int] = {}
    """What of `start_ns` each of a control plane's stages took; empty where none made it."""
    journey_ns: Mapping[str, int] = {}
    """What of the rollout was the wire, and what a server's own; empty where its sandbox was not behind one."""
    reset_ns: int
    cleanup_ns: int
    think_ns: int
    cpu_s: float
    written_bytes: int | None
    identity: str
    quiet: Quiet
    actions_ns: "array[int]"
    """How long each action took, from asking to its answer."""
    inside_ns: "array[int]"
    """By the clock inside, for each action; NO_CLOCK where there is none."""
    nulls_ns: "array[int]"
    null_inside_ns: "array[int]"

    @property
    def total_s(self) -> float:
        """The rollout's own time: neither the instrument's nor the model's."""
        return (self.wall_ns - self.think_ns) / 1e9

    @property
    def waited_s(self) -> float:
        """From when it was to begin to its end: what whoever asked for it waited, the model's time apart."""
        return self.late_ns / 1e9 + self.total_s

    @property
    def taken_s(self) -> float:
        """How long a worker was taken by it, waiting for the model included."""
        return self.wall_ns / 1e9


def condense(trial: Trial) -> Condensed:
    """The trial's numbers; its spans can be forgotten. A SpecError if they cannot be a rollout's."""
    try:
        found = _condensed(trial)
    except OverflowError:  # a time that no array of 64 bits holds
        raise _impossible(trial) from None
    times = (trial.wall_ns, trial.apart_ns, found.start_ns, found.setup_ns, found.reset_ns, found.cleanup_ns, found.think_ns)
    inside = (*found.actions_ns, *found.nulls_ns)
    if not all(0 <= time < YEAR_NS for time in (*times, *inside)) or not abs(trial.cpu_s) < YEAR_NS / 1e9:
        raise _impossible(trial)
    return found


def _impossible(trial: Trial) -> SpecError:
    return SpecError(
        f"the trial of {trial.cell.address} on {trial.cell.workload} in block {trial.block} has a time below zero or above a "
        "year: the results are damaged"
    )


def _condensed(trial: Trial) -> Condensed:
    actions, inside, nulls, null_inside = array("q"), array("q"), array("q"), array("q")
    sums = dict.fromkeys(("create", SETUP, RESET, THINK, "cleanup", *STAGES, *JOURNEY), 0)
    apart_until_ns = 0
    for span in trial.spans:
        took = span.end_ns - span.start_ns
        if span.name in (NULL, IDENTITY):
            apart_until_ns = span.end_ns
        if span.name == "action":
            actions.append(took)
            inside.append(NO_CLOCK if span.guest_ns is None else span.guest_ns)
        elif span.name == NULL:
            nulls.append(took)
            null_inside.append(NO_CLOCK if span.guest_ns is None else span.guest_ns)
        elif span.name in sums and not (span.name in JOURNEY and span.start_ns < apart_until_ns):  # of the instrument's own
            sums[span.name] += took
    return Condensed(
        cell=trial.cell,
        block=trial.block,
        lane=trial.lane,
        warmup=trial.warmup,
        noisy=trial.noisy,
        rerun=trial.rerun,
        control=trial.control,
        intended_ns=trial.intended_ns,
        late_ns=trial.late_ns,
        failure=trial.failure,
        wall_ns=trial.wall_ns - trial.apart_ns,
        start_ns=sums["create"] + sums["ready"],
        setup_ns=sums[SETUP],
        stages_ns={name: sums[name] for name in STAGES} if sums[STAGES[0]] else {},
        journey_ns={name: sums[name] for name in JOURNEY} if any(sums[name] for name in JOURNEY) else {},
        reset_ns=sums[RESET],
        cleanup_ns=sums["cleanup"],
        think_ns=sums[THINK],
        cpu_s=trial.cpu_s,
        written_bytes=trial.written_bytes,
        identity=trial.identity,
        quiet=trial.quiet,
        actions_ns=actions,
        inside_ns=inside,
        nulls_ns=nulls,
        null_inside_ns=null_inside,
    )
