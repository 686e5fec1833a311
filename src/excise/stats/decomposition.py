"""One trial's time, split into terms that add up to it.

    total = start + set-up + reset + dispatch + slowdown + work + cleanup + unattributed          tax = total - work

Work is what the same action took on the reference in the same block. Observation (carrying the answer back) is inside
dispatch: no substrate tells the two apart yet. Waiting for a model is a term of its own, and in neither total nor tax.
"""

from collections.abc import Sequence

import msgspec

from excise.stats.condensed import NO_CLOCK, Condensed


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one rollout. Dispatch, slowdown and work are sums over its actions."""

    start_s: float
    """create and ready: until a first command has answered."""
    setup_s: float = 0.0
    """From there to the start state: the spec's steps, boot commands and ready probes."""
    reset_s: float
    """Back to the start state, in a sandbox that goes on living."""
    dispatch_s: float
    """Between asking and the process, both ways: wall time less time inside."""
    slowdown_s: float
    """How much longer the action itself took than on the reference; below zero where it was faster."""
    work_s: float
    """The same actions as plain processes on the same root filesystem."""
    cleanup_s: float
    unattributed_s: float
    """The harness's own time between the verbs."""
    think_s: float
    """Beside the total."""
    actions: int
    estimated: bool
    """Some action had no clock inside: dispatch is that of the null action beside it."""

    @property
    def total_s(self) -> float:
        return self.tax_s + self.work_s

    @property
    def tax_s(self) -> float:
        once_s = self.start_s + self.setup_s + self.reset_s + self.cleanup_s
        return once_s + self.dispatch_s + self.slowdown_s + self.unattributed_s


def decompose(trial: Condensed, reference: Condensed) -> Terms:
    """Split `trial`, with `reference`'s trial of the same block as the measure of work."""
    mine, theirs = trial.actions_ns, reference.actions_ns
    if len(mine) != len(theirs):
        raise ValueError(f"{len(mine)} actions cannot be paired with the reference's {len(theirs)}")
    # Doing it in our own process (a file read), the reference has no clock of its own: all of its time is work.
    work = _inside_ns(theirs, reference.inside_ns)
    null_work = _inside_ns(reference.nulls_ns, reference.null_inside_ns)
    paired = min(len(trial.nulls_ns), len(null_work))
    dispatch_ns = 0
    for index, inside in enumerate(trial.inside_ns):
        if inside != NO_CLOCK:
            dispatch_ns += mine[index] - inside
        elif index < paired:
            dispatch_ns += trial.nulls_ns[index] - null_work[index]
        else:
            dispatch_ns += mine[index] - work[index]
    in_actions_ns, work_ns = sum(mine), sum(work)
    around_ns = trial.start_ns + trial.setup_ns + trial.reset_ns + trial.cleanup_ns
    known_ns = around_ns + in_actions_ns + trial.think_ns
    return Terms(
        start_s=trial.start_ns / 1e9,
        setup_s=trial.setup_ns / 1e9,
        reset_s=trial.reset_ns / 1e9,
        dispatch_s=dispatch_ns / 1e9,
        slowdown_s=(in_actions_ns - dispatch_ns - work_ns) / 1e9,
        work_s=work_ns / 1e9,
        cleanup_s=trial.cleanup_ns / 1e9,
        unattributed_s=(trial.wall_ns - known_ns) / 1e9,
        think_s=trial.think_ns / 1e9,
        actions=len(mine),
        estimated=NO_CLOCK in trial.inside_ns,
    )


def _inside_ns(took_ns: Sequence[int], inside_ns: Sequence[int]) -> list[int]:
    return [took if inside == NO_CLOCK else inside for took, inside in zip(took_ns, inside_ns, strict=True)]
