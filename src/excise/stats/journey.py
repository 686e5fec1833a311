"""What of a rollout was the way to its sandbox: the wire, the server, and what they leave, which is the sandbox's own."""

from excise.meter.records import JOURNEY
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE
from excise.stats.rows import Row

SANDBOX = "sandbox"


def journey_s(row: Row) -> dict[str, Estimate]:
    """Mean seconds a rollout; with `sandbox` they add up to its total. Empty where no server is in between."""
    blocks = row.blocks
    if blocks is None or not any(blocks.sums[name] for name in JOURNEY):
        return {}

    def mean(name: str) -> Estimate:
        return blocks.estimate(lambda sums: sums[name] / sums["rollouts"], POSITIVE)

    left = blocks.estimate(lambda sums: (sums["total"] - sum(sums[name] for name in JOURNEY)) / sums["rollouts"], POSITIVE)
    return {**{name: mean(name) for name in JOURNEY}, SANDBOX: left}
