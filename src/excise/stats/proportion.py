"""Success rates."""

import math
from statistics import NormalDist

from excise.stats.estimate import CONFIDENCE, Estimate


def wilson(successes: int, n: int) -> Estimate | None:
    """The share of successes with Wilson's interval, which stays sensible at 0 and at n; None without a trial."""
    if n == 0:
        return None
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = successes / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Estimate(share, max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale))
