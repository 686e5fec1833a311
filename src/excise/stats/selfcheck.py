"""Whether the instrument can be believed: its intervals, what it says of two alike, and of a delay that is known."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from excise.meter.records import Harness
from excise.stats.coverage import EXPERIMENTS, LEAST, MOST, Covered, cases, cover
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SIGNED, Blocks, Sums

SURE = 0.999
"""How sure the live checks are: one of a thousand runs may fail by chance."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the instrument."""

    name: str
    promise: str
    kept: bool | None
    """None: it is told, and not judged."""
    seen: str
    """The figures."""


def coverage(experiments: int = EXPERIMENTS, seed: int = 0) -> Iterator[Finding]:
    """Simulated experiments with a known truth, a kind of interval after the other."""
    for case in cases():
        found = cover(case, experiments, seed)
        yield Finding(
            name=f"coverage: {found.name}",
            promise=f"a 95 % interval holds the truth in {100 * LEAST:.0f} to {100 * MOST:.0f} % of experiments",
            kept=not found.fault if found.judged else None,
            seen=_held(found),
        )


def _held(found: Covered) -> str:
    held = f"it held the truth in {100 * found.share:.1f} % of {found.experiments:,} experiments"
    return held if found.judged else f"{held}; not judged: {found.why}"


def alike(once_s: Sequence[float], again_s: Sequence[float]) -> Finding:
    """The same substrate twice, by blocks."""
    found = _blocks(once_s, again_s).estimate(lambda sums: sums["b"] / sums["a"], POSITIVE, SURE)
    return Finding(
        name="live: the same twice",
        promise="one substrate measured as two does not differ from itself",
        kept=_within(found, 1.0),
        seen=f"ratio {found.value:.3f}, 99.9 % interval {_ends(found, lambda x: f'{x:.3f}')}",
    )


def delayed(once_s: Sequence[float], delayed_s: Sequence[float], actions: int, delay_s: float) -> Finding:
    """A delay in every action of the second, by blocks."""

    def each(sums: Sums) -> float:
        return (sums["b"] - sums["a"]) / sums["n"] / actions

    found = _blocks(once_s, delayed_s).estimate(each, SIGNED, SURE)
    return Finding(
        name="live: a delay is found",
        promise=f"{delay_s * 1e3:g} ms more in each action are seen, beyond what chance makes",
        kept=found.low is not None and found.low > 0,
        seen=f"{found.value * 1e3:.2f} ms an action, 99.9 % interval {_ends(found, lambda x: f'{x * 1e3:.2f}')}",
    )


def overhead(harness: Harness) -> Finding:
    """What the harness itself takes, where the substrate does nothing."""
    return Finding(
        name="the harness's own time",
        promise="it is said, and is in every row",
        kept=None,
        seen=f"{harness.rollout_s * 1e6:.0f} us a rollout, {harness.action_s * 1e6:.0f} us an action on nothing at all",
    )


def _blocks(first: Sequence[float], second: Sequence[float]) -> Blocks:
    return Blocks({"a": first, "b": second, "n": [1.0] * len(first)})


def _within(found: Estimate, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def _ends(found: Estimate, shown: Callable[[float], str]) -> str:
    return "none" if found.low is None or found.high is None else f"{shown(found.low)}..{shown(found.high)}"
