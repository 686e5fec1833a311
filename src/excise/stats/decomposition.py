"""One trial's wall time, split into terms that add up to it.

    total = start + dispatch + slowdown + work + cleanup + unattributed          tax = total - work

Work is what the same action took on the reference in the same block. Observation (carrying the answer back) is inside
dispatch: no substrate tells the two apart yet.
"""

from collections.abc import Sequence

import msgspec

from excise.meter.records import NULL, Trial
from excise.trace import Span


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one rollout. Dispatch, slowdown and work are sums over its actions."""

    start_s: float
    """create and ready: until a first command has answered."""
    dispatch_s: float
    """Between asking and the process, both ways: wall time less time inside."""
    slowdown_s: float
    """How much longer the action itself took than on the reference; below zero where it was faster."""
    work_s: float
    """The same actions as plain processes on the same root filesystem."""
    cleanup_s: float
    unattributed_s: float
    """The harness's own time between the verbs."""
    actions: int
    estimated: bool
    """Some action had no clock inside: dispatch is that of the null action beside it."""

    @property
    def total_s(self) -> float:
        return self.tax_s + self.work_s

    @property
    def tax_s(self) -> float:
        return self.start_s + self.dispatch_s + self.slowdown_s + self.cleanup_s + self.unattributed_s


def total_s(trial: Trial) -> float:
    """The rollout's wall time, without what the instrument did inside it."""
    return (trial.wall_ns - trial.apart_ns) / 1e9


def decompose(trial: Trial, reference: Trial) -> Terms:
    """Split `trial`, with `reference`'s trial of the same block as the measure of work."""
    actions, nulls = _named(trial, "action"), _named(trial, NULL)
    theirs, their_nulls = _named(reference, "action"), _named(reference, NULL)
    if len(actions) != len(theirs):
        raise ValueError(f"{len(actions)} actions cannot be paired with the reference's {len(theirs)}")
    work = [_inside_ns(span) for span in theirs]
    dispatch: list[int] = []
    for index, span in enumerate(actions):
        if span.guest_ns is not None:
            dispatch.append(span.duration_ns - span.guest_ns)
        elif index < len(nulls) and index < len(their_nulls):
            dispatch.append(nulls[index].duration_ns - _inside_ns(their_nulls[index]))
        else:
            dispatch.append(span.duration_ns - work[index])
    in_actions = _sum_ns(actions)
    start, cleanup = _sum_ns(_named(trial, "create", "ready")), _sum_ns(_named(trial, "cleanup"))
    return Terms(
        start_s=start / 1e9,
        dispatch_s=sum(dispatch) / 1e9,
        slowdown_s=(in_actions - sum(dispatch) - sum(work)) / 1e9,
        work_s=sum(work) / 1e9,
        cleanup_s=cleanup / 1e9,
        unattributed_s=(trial.wall_ns - trial.apart_ns - start - in_actions - cleanup) / 1e9,
        actions=len(actions),
        estimated=any(span.guest_ns is None for span in actions),
    )


def _inside_ns(span: Span) -> int:
    """Time inside on the reference. What it does in our own process (a file read) has no clock of its own: all is work."""
    return span.duration_ns if span.guest_ns is None else span.guest_ns


def _named(trial: Trial, *names: str) -> list[Span]:
    return [span for span in trial.spans if span.name in names]


def _sum_ns(spans: Sequence[Span]) -> int:
    return sum(span.duration_ns for span in spans)
