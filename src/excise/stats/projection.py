"""From one rollout to a million."""

from excise.stats.estimate import Estimate

MILLION = 1_000_000


def worker_hours(total: Estimate, rollouts: int = MILLION) -> Estimate:
    """W = N x T / 3600: hours of one worker that does `rollouts` rollouts of mean time `total` in turn."""
    return total.scaled(rollouts / 3600)
