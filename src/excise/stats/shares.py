"""Where the time of a user's own rollouts went: the model, the work, the tax."""

from collections.abc import Iterable, Sequence

import msgspec

from excise.trace import Span, Trace


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of sandbox lifetime, summed over sandboxes. The four parts add up to `total_s`."""

    model_s: float = 0.0
    """Between the verbs: the policy, the trainer, everything that is not the sandbox."""
    work_s: float = 0.0
    """Inside actions, by the guest's clock."""
    tax_s: float = 0.0
    """Create, ready, cleanup, and what actions took beyond their work."""
    undivided_s: float = 0.0
    """Actions on a substrate without a clock inside, and waiting for a streamed command: work and tax, in proportions nobody
    measured."""
    sandboxes: int = 0

    @property
    def total_s(self) -> float:
        return self.model_s + self.work_s + self.tax_s + self.undivided_s

    def __str__(self) -> str:
        if not self.total_s:
            return "no sandbox was used here (a thread records only if it runs in a copy of this context: see excise.record)"
        parts = {"model": self.model_s, "work": self.work_s, "tax": self.tax_s, "undivided": self.undivided_s}
        shown = (f"{name} {100 * part / self.total_s:.0f} %" for name, part in parts.items() if part or name != "undivided")
        return ", ".join(shown)


class Recording(Trace):
    """What `excise.record()` gives: the spans, and what they add up to."""

    def shares(self) -> Shares:
        return shares(self.spans)

    def __str__(self) -> str:
        return str(self.shares())


def shares(spans: Iterable[Span]) -> Shares:
    """Each sandbox's lifetime, from the start of its create to the end of its cleanup, divided; then all of them summed."""
    by_sandbox: dict[str, list[Span]] = {}
    for span in spans:
        if span.end_ns:  # A verb that still runs has no duration yet.
            by_sandbox.setdefault(span.sandbox, []).append(span)
    parts = [_of_one(own) for own in by_sandbox.values()]
    return Shares(
        model_s=sum(part.model_s for part in parts),
        work_s=sum(part.work_s for part in parts),
        tax_s=sum(part.tax_s for part in parts),
        undivided_s=sum(part.undivided_s for part in parts),
        sandboxes=len(parts),
    )


def _of_one(spans: Sequence[Span]) -> Shares:
    lifetime_ns = max(s.end_ns for s in spans) - min(s.start_ns for s in spans)
    covered_ns = _covered_ns(spans)
    in_verbs_ns = sum(s.duration_ns for s in spans)
    # Actions that ran at once covered less time than they sum to; each gets its part of what was covered.
    scale = covered_ns / in_verbs_ns / 1e9 if in_verbs_ns else 0.0
    actions = [s for s in spans if s.name == "action"]
    work_ns = sum(min(s.guest_ns, s.duration_ns) for s in actions if s.guest_ns is not None)
    undivided_ns = sum(s.duration_ns for s in actions if s.guest_ns is None)
    return Shares(
        model_s=(lifetime_ns - covered_ns) / 1e9,
        work_s=work_ns * scale,
        tax_s=(in_verbs_ns - work_ns - undivided_ns) * scale,
        undivided_s=undivided_ns * scale,
        sandboxes=1,
    )


def _covered_ns(spans: Sequence[Span]) -> int:
    """How long at least one verb ran."""
    covered, end = 0, 0
    for span in sorted(spans, key=lambda s: s.start_ns):
        covered += max(0, span.end_ns - max(span.start_ns, end))
        end = max(end, span.end_ns)
    return covered
