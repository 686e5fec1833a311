"""What of a start each stage of a control plane took: orchestration as measured spans, and what they leave as a number too."""

from excise.meter.records import STAGES
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SIGNED
from excise.stats.rows import Row

UNATTRIBUTED = "unattributed"


def stages_s(row: Row) -> dict[str, Estimate]:
    """Mean seconds of each stage; with `unattributed` they add up to the row's start. Empty where nothing orchestrates."""
    blocks = row.blocks
    if blocks is None or not blocks.sums[STAGES[0]]:
        return {}

    def mean(name: str) -> Estimate:
        return blocks.estimate(lambda sums: sums[name] / sums["rollouts"], POSITIVE)

    found = {name: mean(name) for name in STAGES if blocks.sums[name] or name != "pulled"}
    left = blocks.estimate(lambda sums: (sums["start"] - sum(sums[name] for name in STAGES)) / sums["rollouts"], SIGNED)
    return {**found, UNATTRIBUTED: left}
