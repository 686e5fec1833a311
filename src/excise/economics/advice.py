"""Which way costs least: ranked, with what cannot be told apart, where that changes, and what was not measured."""

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from excise.economics.answer import Advice, Apart, Crossing, Offer, PoolPays, Refused
from excise.economics.demand import KERNELS, Demand, HostPrices, on_host
from excise.economics.evidence import Samples, of_first, of_second
from excise.economics.measured import Measured
from excise.economics.model import Seconds, Unmeasured, Way
from excise.economics.pooling import pays_estimate
from excise.economics.ways import find
from excise.errors import SpecError
from excise.meter.records import Declared
from excise.stats.estimate import Estimate
from excise.stats.jackknife import PLAIN, SIGNED
from excise.stats.projection import Line
from excise.stats.whatif import NOT_ISOLATED

UNIT = "worker-hours"
ALIKE = 1.01
"""Costs that may be nearer to each other than this are not told apart: nobody should move for less."""
_ENDLESS = 1e6
"""Actions. Lines that cross further out are parallel, as far as any rollout goes."""


def advise(measured: Measured, demand: Demand, *, workload: str | None = None, known: Sequence[str] = ()) -> Advice:
    """Rank what was measured for `demand`. `known`: addresses that exist; those without results are named."""
    origin = measured.provenance
    prices = on_host(demand.prices, origin.cores, origin.memory_bytes)
    found = find(measured, demand, prices, workload)
    isolated = [way for way in found.ways if _isolates(way.address)]
    fit = [way for way in isolated if _fits(way, demand) is None]
    refused = _refused(isolated, demand)
    if not fit:
        why = "; ".join(f"{one.address}: {one.reason}" for one in refused) or "nothing that isolates was measured"
        raise SpecError(
            f"nothing that was measured isolates enough ({why}): measure another substrate "
            "(`excise measure --plan isolation`), or ask for less"
        )
    ranked = _ranked(fit, demand, prices)
    best = ranked[0][0]
    return Advice(
        demand=demand,
        unit=UNIT if demand.prices.plain else "in the unit of the prices",
        workload=found.workload,
        runs=tuple(dict.fromkeys(run for way in fit for run in way.evidence.parts)),
        foreign=measured.foreign,
        offers=tuple(_offer(way, cost, best, demand, prices) for way, cost in ranked),
        crossings=_crossings([way for way, _ in ranked], demand, prices),
        pools=_pools(fit, demand, prices),
        kernels=_kernels(isolated, demand, prices),
        refused=refused,
        unmeasured=(*(one for one in found.unmeasured if _isolates(one.name)), *_absent(measured, found.workload, known)),
    )


def _fits(way: Way, demand: Demand) -> str | None:
    """Why a way must not be offered; None where it may be. What did not say how it isolates does not isolate."""
    if way.state == "git" and not demand.leftovers:
        return "git leaves what lies outside of the repository, and what runs, to the next rollout"
    if way.declared is None:
        return "its results do not say how far it isolates: measure it again, or on a machine where it can be asked"
    if demand.satisfied(way.declared.kernel, frozenset(way.declared.isolates)):
        return None
    lacking = sorted(demand.isolates - set(way.declared.isolates))
    kernel = KERNELS.index(way.declared.kernel) < KERNELS.index(demand.kernel)
    parts = [f"its kernel is {way.declared.kernel}, and {demand.kernel} is wanted"] if kernel else []
    return " and ".join([*parts, *([f"it does not isolate {', '.join(lacking)}"] if lacking else [])])


def _refused(ways: Iterable[Way], demand: Demand) -> tuple[Refused, ...]:
    found: dict[tuple[str, str], Refused] = {}
    for way in ways:
        reason = _fits(way, demand)
        if reason is not None:
            name = f"{way.address}, git" if way.state == "git" and reason.startswith("git") else way.address
            found.setdefault((name, reason), Refused(address=name, reason=reason))
    return tuple(found.values())


def _ranked(ways: Iterable[Way], demand: Demand, prices: HostPrices) -> list[tuple[Way, Estimate]]:
    costed = [(way, way.cost(demand, prices)) for way in ways]
    return sorted(costed, key=lambda one: (one[1].value, one[0].name))


def _offer(way: Way, cost: Estimate, best: Way, demand: Demand, prices: HostPrices) -> Offer:
    declared = way.declared or Declared(kernel="shared")
    found = _ITSELF if way is best else beside(way, best, demand, prices)
    seconds = way.typical(demand)
    return Offer(
        address=way.address,
        state=way.state,
        pool_size=way.pool_size,
        connect=way.connect,
        name=way.name,
        kernel=declared.kernel,
        isolates=declared.isolates,
        cost=cost.scaled(1000.0),
        seconds=seconds,
        more=found.more.scaled(1000.0),
        ratio=found.ratio,
        tied=found.tied,
        reason=_largest(seconds) if way is best else _dearer(seconds, best.typical(demand), prices),
        notes=way.notes,
        blocks=way.blocks,
    )


class Beside(msgspec.Struct, frozen=True):
    """One way beside another."""

    more: Estimate
    ratio: Estimate
    tied: bool


def beside(way: Way, other: Way, demand: Demand, prices: HostPrices) -> Beside:
    """How much more it costs than `other`, and how many times as much.

    Whether the two can be told apart is judged by the difference, in blocks that both have: what both pay cancels there, and
    not in the ratio. Where they share none, by whether their intervals meet.
    """
    both = way.evidence.beside(other.evidence)
    if both is None:
        mine, theirs = way.cost(demand, prices), other.cost(demand, prices)
        apart = mine.low is not None and theirs.high is not None and mine.low > theirs.high
        return Beside(Estimate(mine.value - theirs.value), Estimate(mine.value / theirs.value), not apart)

    def costs(samples: Samples) -> tuple[float, float]:
        mine, theirs = way.seconds(of_first(samples), demand), other.seconds(of_second(samples), demand)
        return mine.cost(prices), theirs.cost(prices)

    more = both.estimate(lambda samples: _less(*costs(samples)), PLAIN)
    ratio = both.estimate(lambda samples: _over(*costs(samples)))
    unsure = more.low is None or more.high is None or more.low <= 0 <= more.high
    return Beside(more, ratio, unsure or 1 / ALIKE < ratio.value < ALIKE)


def _less(mine: float, theirs: float) -> float:
    return mine - theirs


def _over(mine: float, theirs: float) -> float:
    return mine / theirs


_ITSELF = Beside(Estimate(0.0, 0.0, 0.0), Estimate(1.0, 1.0, 1.0), tied=False)
_PARTS = {
    "starts_s": "its start states",
    "dispatch_s": "the way to its actions",
    "slowdown_s": "its slowdown of the work",
    "failed_s": "rollouts that fail",
}


def _largest(own: Seconds) -> str:
    """What a rollout still pays, on the cheapest."""
    name = max(_PARTS, key=lambda part: getattr(own, part))
    share = 100 * own.waiting_s / own.occupied_s if own.occupied_s else 0.0
    if own.waiting_s <= 0:
        return "its tax cannot be told from nothing beside the work"
    return f"{share:.0f} % of its time is tax, and most of that is {_PARTS[name]} ({_time(getattr(own, name))} a rollout)"


def _dearer(own: Seconds, best: Seconds, prices: HostPrices) -> str:
    """The one difference that costs most."""
    each = prices.worker + prices.waiting
    more = {words: each * (getattr(own, part) - getattr(best, part)) for part, words in _PARTS.items()}
    seconds = {words: getattr(own, part) - getattr(best, part) for part, words in _PARTS.items()}
    more["what it makes ahead"] = prices.ahead * (own.ahead_s - best.ahead_s)
    more["the memory of its idle sandboxes"] = prices.gib * (own.held_gib_s - best.held_gib_s)
    words = max(more, key=lambda name: more[name])
    if more[words] <= 0:
        return "it costs the same"
    if words in seconds:
        verb = "take" if words in ("its start states", "rollouts that fail") else "takes"
        return f"{words} {verb} {_time(seconds[words])} more a rollout"
    return f"{words} costs more than it saves"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1e3 * seconds:.3g} ms"


def _crossings(ranked: Sequence[Way], demand: Demand, prices: HostPrices) -> tuple[Crossing, ...]:
    """Where the cheapest ways of two addresses cost the same, and two ways of the best address."""
    of_each = list({way.address: way for way in reversed(ranked)}.values())
    pairs = [*itertools.combinations(of_each, 2)]
    pairs += [(ranked[0], way) for way in ranked[1:] if way.address == ranked[0].address]
    found = (_crossing(one, other, demand, prices) for one, other in pairs)
    return tuple(sorted((one for one in found if one), key=lambda one: (one.actions.value, one.shorter, one.longer)))


def _crossing(one: Way, other: Way, demand: Demand, prices: HostPrices) -> Crossing | None:
    both = one.evidence.beside(other.evidence)
    if both is None:
        return None

    def more(samples: Samples) -> Line:
        mine, theirs = one.line(of_first(samples), demand, prices), other.line(of_second(samples), demand, prices)
        return Line(fixed_s=theirs.fixed_s - mine.fixed_s, per_action_s=theirs.per_action_s - mine.per_action_s)

    at = both.crossing(more)
    if at.length is None or at.length.value > _ENDLESS:
        return None
    shorter, longer = (one.name, other.name) if at.above else (other.name, one.name)
    return Crossing(shorter=shorter, longer=longer, actions=at.length, certain=at.certain)


def _pools(ways: Sequence[Way], demand: Demand, prices: HostPrices) -> tuple[PoolPays, ...]:
    fresh = {way.address: way for way in ways if way.state == "fresh"}
    return tuple(
        _pool_pays(fresh[way.address], way, demand, prices) for way in ways if way.state == "pool" and way.address in fresh
    )


def _pool_pays(fresh: Way, pool: Way, demand: Demand, prices: HostPrices) -> PoolPays:
    """One start that finds a sandbox idle, against one that makes it."""
    each = prices.worker + prices.waiting
    claim = next(run for run in pool.evidence.parts if run not in fresh.evidence.parts)
    once = msgspec.structs.replace(demand, resets=0.0)

    def saved(samples: Samples) -> float:
        start_s, sums = fresh.seconds(samples, once).starts_s, samples[claim]
        return each * (start_s - sums["claim.sum"] / sums["claim.n"]) - prices.ahead * start_s

    value = pool.evidence.estimate(saved, SIGNED)
    per_hour = pays_estimate(value, pool.held_bytes / (1 << 30) * prices.gib * 3600, pool.making_s)
    if per_hour.value == float("inf"):
        why = (
            "a claim saves less waiting than making sandboxes ahead costs"
            if value.value <= 0
            else "idle ones cost more to hold"
        )
        return PoolPays(address=pool.address, per_hour=None, reason=f"{why}, at these prices")
    return PoolPays(address=pool.address, per_hour=per_hour, reason="from there on the waits it saves are worth what it holds")


def _kernels(ways: Sequence[Way], demand: Demand, prices: HostPrices) -> tuple[Apart, ...]:
    """The cheapest at each level of isolation, whatever level was asked for; a level weaker than it is no offer."""
    found: list[Apart] = []
    cheapest: Way | None = None
    for kernel in KERNELS:
        level = msgspec.structs.replace(demand, kernel=kernel)
        fit = [way for way in ways if _fits(way, level) is None]
        if not fit:
            found.append(Apart(kernel=kernel, name=None))
            continue
        way, cost = _ranked(fit, demand, prices)[0]
        cheapest = cheapest or way
        ratio = _ITSELF.ratio if way is cheapest else beside(way, cheapest, demand, prices).ratio
        found.append(Apart(kernel=kernel, name=way.name, cost=cost.scaled(1000.0), ratio=ratio))
    return tuple(found)


def _absent(measured: Measured, workload: str, known: Sequence[str]) -> tuple[Unmeasured, ...]:
    there: dict[str, dict[str, None]] = {}
    for _, row in measured.rows():
        there.setdefault(row.address, {})[row.cell.workload] = None
    reasons = {one.address: f"it could not run when it was measured: {one.reason}" for one in measured.skipped}
    for address, on in there.items():
        if workload not in on:
            reasons[address] = f"it was not measured on {workload}; --workload takes {', '.join(on)}"
    for address in known:
        if address not in there:
            reasons.setdefault(address, f"no results here: `excise measure {address}`")
    return tuple(Unmeasured(name=address, reason=reason) for address, reason in reasons.items() if _isolates(address))


def _isolates(address: str) -> bool:
    """Nobody is advised to go without a sandbox, nor told that such rows are missing."""
    return address.partition("+")[0].partition(",")[0] not in NOT_ISOLATED
