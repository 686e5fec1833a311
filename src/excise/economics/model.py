"""What one rollout costs on one substrate, from what was measured of it. design/advise.md says how well that holds.

occupied = starts x S + actions x (dispatch + work x (1 + slowdown / work) + think), failed rollouts paid for
waiting  = occupied - work - think
cost     = worker x occupied + waiting x waiting + ahead x made ahead + gib x held
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from excise.economics.demand import Demand, HostPrices
from excise.economics.evidence import Evidence, Samples
from excise.meter.records import Declared
from excise.stats.estimate import Estimate
from excise.stats.jackknife import Sums
from excise.stats.projection import Line


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rollout that succeeds."""

    starts_s: float
    """Create, set-up, reset, cleanup: for as many start states as it takes."""
    dispatch_s: float
    """Between asking and the process, both ways, and the harness's own time."""
    slowdown_s: float
    work_s: float
    think_s: float = 0.0
    failed_s: float = 0.0
    """Of those that failed before it."""
    ahead_s: float = 0.0
    """Somebody made its sandbox before it was asked for: a core's time, and no wait."""
    held_gib_s: float = 0.0
    """Memory of idle sandboxes, times how long it was held for this rollout."""

    @property
    def occupied_s(self) -> float:
        return self.waiting_s + self.work_s + self.think_s

    @property
    def waiting_s(self) -> float:
        return self.starts_s + self.dispatch_s + self.slowdown_s + self.failed_s

    def cost(self, prices: HostPrices) -> float:
        used = prices.worker * self.occupied_s + prices.waiting * self.waiting_s
        return used + prices.ahead * self.ahead_s + prices.gib * self.held_gib_s


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What the advice cannot be about, why, and what would change that."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Way:
    """A substrate, a path into it and a way to its start states: what is ranked."""

    address: str
    """Of the substrate itself, with its path: `docker+guest`."""
    state: str
    """How a start state is come by: fresh, kept, snapshot, fork, git, pool."""
    workload: str
    declared: Declared | None
    evidence: Evidence
    seconds: Callable[[Samples, Demand], Seconds]
    pool_size: int = 0
    parallel: int = 1
    """Of a pool: rollouts that have a sandbox of it at once."""
    making_s: float = 0.0
    """Of a pool: how long one sandbox takes to make."""
    held_bytes: float = 0.0
    """Of a pool: what each idle one weighs."""
    blocks: int = 0
    n: int = 0
    """Trials that succeeded."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`docker+guest, fork`; `namespace, pool of 8`."""
        words = {"fresh": "a new sandbox each", "kept": "steps kept", "pool": f"pool of {self.pool_size}"}
        return f"{self.address}, {words.get(self.state, self.state)}"

    @property
    def connect(self) -> str:
        """What `excise.connect` takes."""
        if self.state != "pool":
            return self.address
        head, _, options = self.address.partition("?")
        # A pool counts those that are claimed too.
        own = f"pool.count={self.pool_size + self.parallel}&pool.policy=fixed&pool.keep={self.pool_size}"
        return f"pool:{head}?{own}" + (f"&{options}" if options else "")

    def line(self, samples: Samples, demand: Demand, prices: HostPrices) -> Line:
        """The cost as a line in the number of actions, all of a rollout's work growing with them."""
        each_s = None if demand.work_s is None else demand.work_s / demand.actions

        def at(actions: int) -> float:
            work_s = None if each_s is None else each_s * actions
            return self.seconds(samples, msgspec.structs.replace(demand, actions=actions, work_s=work_s)).cost(prices)

        one, two = at(1), at(2)
        return Line(fixed_s=2 * one - two, per_action_s=two - one)

    def cost(self, demand: Demand, prices: HostPrices) -> Estimate:
        """Of one rollout."""
        return self.evidence.estimate(lambda samples: self.seconds(samples, demand).cost(prices))

    def typical(self, demand: Demand) -> Seconds:
        """By the means of all blocks."""
        return self.seconds(self.evidence.whole, demand)


@dataclass(frozen=True)
class Crowd:
    """How much longer starts and dispatch take with others at once: between the nearest measured numbers, on logarithms."""

    at_once: float
    run: str
    prefixes: tuple[tuple[int, str], ...]
    """Numbers at once, 1 first, and the columns that have them."""

    def factors(self, samples: Samples) -> tuple[float, float]:
        """Of starts, and of an action."""
        sums = samples[self.run]
        return self._between(sums, "fixed", "rollouts"), self._between(sums, "acting", "actions")

    def _between(self, sums: Sums, name: str, by: str) -> float:
        known = [(math.log(number), math.log(sums[f"{p}{name}"] / sums[f"{p}{by}"])) for number, p in self.prefixes]
        wanted = math.log(self.at_once)
        for (x0, y0), (x1, y1) in itertools.pairwise(known):
            if wanted <= x1:
                return math.exp(y0 + (y1 - y0) * (wanted - x0) / (x1 - x0) - known[0][1])
        return math.exp(known[-1][1] - known[0][1])
