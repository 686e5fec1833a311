"""The answer, as plain data: what is ranked, where that changes, what was refused, and what nobody measured."""

import msgspec

from excise.economics.demand import Demand
from excise.economics.model import Seconds, Unmeasured
from excise.stats.estimate import Estimate


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One way, as it is ranked."""

    address: str
    state: str
    """fresh, kept, snapshot, fork, git, pool."""
    pool_size: int = 0
    connect: str
    """What `excise.connect` takes."""
    name: str
    kernel: str
    isolates: tuple[str, ...] = ()
    cost: Estimate
    """Of 1,000 rollouts, in the advice's unit."""
    seconds: Seconds
    """Of one rollout, on average."""
    more: Estimate
    """Than the cheapest, of 1,000 rollouts: within blocks, so that what both pay cancels."""
    ratio: Estimate
    """To the cheapest."""
    tied: bool
    """`more` cannot be told from nothing, or is less than 1 %."""
    reason: str = ""
    notes: tuple[str, ...] = ()
    blocks: int = 0


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """The length at which two ways cost the same."""

    shorter: str
    """Cheaper for rollouts shorter than that."""
    longer: str
    actions: Estimate
    certain: bool
    """The interval has two ends."""


class PoolPays(msgspec.Struct, frozen=True, kw_only=True):
    """From how many starts an hour a pool costs less than making each sandbox when it is asked for."""

    address: str
    per_hour: Estimate | None
    """None: it never does, at these prices."""
    reason: str


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest way with at least this kernel: the price of isolation."""

    kernel: str
    name: str | None
    """None: nothing with such a kernel was measured here."""
    cost: Estimate | None = None
    ratio: Estimate | None = None
    """To the cheapest of any kernel."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    reason: str


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `excise advise` prints."""

    demand: Demand
    unit: str
    workload: str
    runs: tuple[str, ...]
    foreign: bool
    """The results are of another host than this."""
    offers: tuple[Offer, ...]
    crossings: tuple[Crossing, ...]
    pools: tuple[PoolPays, ...]
    kernels: tuple[Apart, ...]
    refused: tuple[Refused, ...]
    """Too little isolation for what is wanted."""
    unmeasured: tuple[Unmeasured, ...]

    @property
    def best(self) -> Offer:
        """The cheapest; `tied` says of the others whether that is certain."""
        return self.offers[0]
