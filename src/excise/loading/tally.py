"""What came of the rollouts so far: hits, claim times from the intended start, failures."""

from bisect import bisect_right
from collections import Counter

import msgspec

from excise.stats.quantile import point

HITS = ("deps", "repo", "sibling", "image", "base", "template", "miss")
"""What a claim can hit, the deepest first."""
NO_POOL = "created"
"""The hit of a claim whose trace says nothing of a pool."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout's claim. Times are from when it was to begin: whoever kept it waiting, it waited."""

    at_s: float
    """When it was to begin, from the beginning of the load."""
    name: str
    late_s: float
    """How much later it was asked for, because this process was busy; part of `claim_s`."""
    claim_s: float
    """To a sandbox that is ready, or to the failure."""
    hit: str = ""
    owner: str = ""
    failure: str | None = None


class Tally:
    """Running numbers of one load."""

    def __init__(self) -> None:
        self.arrived = 0
        self.holding = 0
        self.ended = 0
        self.lost = 0
        """Sandboxes that were ready, and did not live until the rollout's end."""
        self.claims: list[Claim] = []
        self.failures: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self._by_hit: dict[str, list[float]] = {}
        self._all: list[float] = []

    @property
    def waiting(self) -> int:
        """Asked for, and neither ready nor failed."""
        return self.arrived - len(self.claims)

    def claimed(self, claim: Claim) -> None:
        self.claims.append(claim)
        if claim.failure is not None:
            self.failures[claim.failure] += 1
            return
        self._all.append(claim.claim_s)
        self._by_hit.setdefault(claim.hit, []).append(claim.claim_s)

    def lose(self, reason: str) -> None:
        self.lost += 1
        self.losses[reason] += 1

    def hits(self) -> dict[str, int]:
        """How many claims hit what, the deepest first; what never was is left out."""
        known = [hit for hit in HITS if hit in self._by_hit] + sorted(set(self._by_hit) - set(HITS))
        return {hit: len(self._by_hit[hit]) for hit in known}

    def quantile_s(self, q: float, hit: str | None = None) -> float | None:
        """Of the claims that succeeded, all of them or those of one hit."""
        values = self._all if hit is None else self._by_hit.get(hit, [])
        values.sort()  # What was sorted a second ago is nearly so now, and that is quick.
        return point(values, q) if values else None

    def within(self, seconds: float, hit: str) -> int:
        """How many claims of that hit took at most so long."""
        values = self._by_hit[hit]
        values.sort()
        return bisect_right(values, seconds)

    def total_s(self, hit: str) -> float:
        return sum(self._by_hit[hit])
