"""What is wanted: how long rollouts are, how often they begin, how many at once, how far apart, and what time is worth."""

import math
from typing import Literal, get_args

import msgspec

from excise.errors import SpecError
from excise.spec import Kernel
from excise.stats.projection import LONG

Aspect = Literal["files", "processes", "network", "ipc", "users"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
"""The weakest first."""

GIB = 1 << 30


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Of an hour each, in any one unit. As they are, costs are worker-hours."""

    worker: float = 1.0
    """Of a worker that is taken by a rollout."""
    waiting: float = 0.0
    """Of a rollout that waits for infrastructure: what stands still meanwhile, a share of GPUs for example."""
    ahead: float | None = None
    """Of a core that makes sandboxes ahead. None: as a worker's, for it could have been one."""
    gib: float | None = None
    """Of a GiB that idle sandboxes hold. None: a worker's, times the host's cores for each GiB of its memory."""

    def __post_init__(self) -> None:
        for name in ("worker", "waiting", "ahead", "gib"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise SpecError(f"a price of {price:g} for an hour ({name}) cannot be: give a number of 0 or more")
        if not self.worker and not self.waiting:
            raise SpecError("with no price for a worker and none for waiting every substrate costs nothing: give one of them")

    @property
    def plain(self) -> bool:
        """Nothing was priced: costs are worker-hours."""
        return self == Prices()


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of training, as far as its sandboxes go."""

    actions: int = LONG
    """Of a rollout."""
    work_s: float | None = None
    """Seconds a rollout's actions work by themselves, as plain processes. None: as the measured workload's do."""
    think_s: float = 0.0
    """After each action the worker waits so long for the model, on every substrate alike."""
    resets: float = 0.0
    """How often a rollout goes back to its start state before its end."""
    starts_per_hour: float | None = None
    """How many start states are asked for in an hour. None: as many as `parallel` workers that never pause ask for."""
    parallel: int = 1
    """Rollouts at once."""
    rollouts: float = 1000.0
    """Of the whole phase: what is made once is shared among them."""
    kernel: Kernel = "shared"
    """At least: shared, intercepted, own."""
    isolates: frozenset[Aspect] = frozenset({"files", "processes"})
    """What one sandbox must not see or touch of another."""
    leftovers: bool = False
    """A rollout may find what an earlier one left outside of the repository: `git` will do for a reset."""
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        if self.actions < 1 or self.parallel < 1:
            raise SpecError(f"actions={self.actions}, parallel={self.parallel}: a rollout has an action, and one runs at least")
        if not 1 <= self.rollouts < math.inf:
            raise SpecError(f"rollouts={self.rollouts:g}: a phase has at least one")
        if not all(0 <= one < math.inf for one in (self.work_s or 0.0, self.think_s, self.resets)):
            raise SpecError("work, think time and resets are numbers of 0 or more")
        if self.starts_per_hour is not None and not 0 < self.starts_per_hour < math.inf:
            raise SpecError(f"starts_per_hour={self.starts_per_hour:g}: give a number above 0, or leave it out")
        if self.kernel not in KERNELS:
            raise SpecError(f"kernel={self.kernel!r}: it is one of {', '.join(KERNELS)}")
        unknown = sorted(self.isolates - set(ASPECTS))
        if unknown:
            raise SpecError(f"nothing isolates {unknown[0]!r}; there are: {', '.join(ASPECTS)}")

    @property
    def starts(self) -> float:
        """Start states that a rollout takes."""
        return 1.0 + self.resets

    def satisfied(self, kernel: Kernel, isolates: frozenset[str]) -> bool:
        """Whether so much isolation is enough. Nothing ever makes up for too little of it."""
        return KERNELS.index(kernel) >= KERNELS.index(self.kernel) and self.isolates <= isolates


class HostPrices(msgspec.Struct, frozen=True, kw_only=True):
    """All four prices, on one host, of a second each."""

    worker: float
    waiting: float
    ahead: float
    gib: float


def on_host(prices: Prices, cores: int, memory_bytes: int) -> HostPrices:
    """`prices` with what was left out. A host's memory is taken to be worth what its cores are: either can be what is short."""
    ahead = prices.worker if prices.ahead is None else prices.ahead
    each_gib = prices.worker * cores / (memory_bytes / GIB) if memory_bytes else 0.0
    gib = each_gib if prices.gib is None else prices.gib
    return HostPrices(worker=prices.worker / 3600, waiting=prices.waiting / 3600, ahead=ahead / 3600, gib=gib / 3600)
