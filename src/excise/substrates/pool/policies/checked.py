"""What cannot be meant: policies that contradict themselves are refused before anything is made."""

import math

from excise.errors import SpecError
from excise.substrates.pool.policies.view import Policy


def check(policy: Policy) -> None:
    """SpecError unless a pool can follow it."""
    if policy.cap < 1:
        raise SpecError(f"a pool of count={policy.cap} holds no sandbox: give it a count of at least 1")
    if policy.memory_cap_bytes is not None and policy.memory_cap_bytes < 1:
        raise SpecError(f"a pool of {policy.memory_cap_bytes} bytes holds no sandbox: give it memory, or no cap on it")
    if policy.percentile is not None and not 0 < policy.percentile < 1:
        raise SpecError(f"percentile={policy.percentile}: it lies between 0 and 1, such as 0.95; None follows no demand")
    if policy.idle_s is not None and not 0 < policy.idle_s < math.inf:
        raise SpecError(f"idle_s={policy.idle_s}: it is a number of seconds above 0; None keeps what is idle")
    if any(count < 0 for count in policy.fixed.values()):
        raise SpecError("a fixed target is below 0: say how many to hold, or leave the state out")
    if sum(policy.fixed.values()) > policy.cap:
        raise SpecError(
            f"fixed targets of {sum(policy.fixed.values())} are above the cap of {policy.cap}: raise it, or hold fewer"
        )
