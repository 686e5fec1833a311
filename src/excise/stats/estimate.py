"""A number and how far it can be trusted."""

from collections.abc import Callable

import msgspec

CONFIDENCE = 0.95


class Estimate(msgspec.Struct, frozen=True):
    """A value with the ends of its 95 % interval; None for both where there is too little data for one."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> "Estimate":
        return self.through(lambda x: x * factor)

    def through(self, rising: Callable[[float], float]) -> "Estimate":
        """The estimate of `rising(value)`, where the function only rises: the interval goes through it."""
        ends = (None if end is None else rising(end) for end in (self.low, self.high))
        return Estimate(rising(self.value), *ends)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3g} [too few trials for an interval]"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"
