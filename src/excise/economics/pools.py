"""A pool over a way that makes a new sandbox for each rollout: what its claims wait, what it makes ahead, what it holds."""

import math
from collections.abc import Sequence

import msgspec

from excise.economics.demand import GIB, Demand, HostPrices
from excise.economics.evidence import Evidence, Samples
from excise.economics.measured import Claims, Measured
from excise.economics.model import Seconds, Unmeasured, Way
from excise.economics.pooling import best_size, served
from excise.stats.jackknife import Blocks
from excise.stats.pools import means


def pool_way(measured: Measured, demand: Demand, prices: HostPrices, fresh: Way) -> Way | Unmeasured:
    """The same sandboxes, made ahead. A claim that finds one idle takes what claims of it took; others what `fresh` does."""
    found = _claims(measured.claims, fresh.address)
    name = f"{fresh.address}, pool"
    if found is None:
        return Unmeasured(
            name=name, reason="claims of a pool over it were not measured: `excise measure --plan warm` does where it can"
        )
    weighed = measured.weighed.get(fresh.address)
    each_bytes = None if weighed is None else weighed.each_bytes
    if each_bytes is None:
        return Unmeasured(
            name=name, reason="what an idle sandbox of it holds was not measured: `python bench/density.py` writes it to a file"
        )
    run, claimed = found
    held_gib = each_bytes / GIB
    typical = fresh.typical(demand)
    each_start_s = fresh.seconds(fresh.evidence.whole, msgspec.structs.replace(demand, resets=0.0)).starts_s
    per_s = _starts_per_s(demand, typical)

    def seconds_of(size: int, samples: Samples, demand: Demand) -> Seconds:
        plain = fresh.seconds(samples, demand)
        start_s = plain.starts_s / demand.starts
        claim_s = min(start_s, samples[run]["claim.sum"] / samples[run]["claim.n"])
        hit = served(size, per_s * each_start_s)
        return msgspec.structs.replace(
            plain,
            starts_s=demand.starts * (hit * claim_s + (1 - hit) * start_s),
            ahead_s=demand.starts * hit * start_s,
            held_gib_s=demand.starts * size * held_gib / per_s,
        )

    evidence = Evidence({**fresh.evidence.parts, run: claimed.named("claim.")})

    def cost(size: int) -> float:
        return seconds_of(size, evidence.whole, demand).cost(prices)

    most = max(demand.parallel, math.ceil(per_s * each_start_s * 4) + 1)
    size = best_size(cost, per_s * each_start_s, most)
    return Way(
        address=fresh.address,
        state="pool",
        workload=fresh.workload,
        declared=fresh.declared,
        evidence=evidence,
        seconds=lambda samples, demand: seconds_of(size, samples, demand),
        pool_size=size,
        parallel=demand.parallel,
        making_s=each_start_s,
        held_bytes=each_bytes,
        blocks=min(fresh.blocks, claimed.n),
        n=fresh.n,
        notes=(*fresh.notes, "its claims are of another run, in that run's seconds"),
    )


def _starts_per_s(demand: Demand, typical: Seconds) -> float:
    if demand.starts_per_hour is not None:
        return demand.starts_per_hour / 3600
    return demand.parallel * demand.starts / typical.occupied_s


def _claims(claims: Sequence[Claims], source: str) -> tuple[str, Blocks] | None:
    """One claim at a time, of the very state that is asked for, from the newest run that has it."""
    for one in claims:
        own = [
            trial
            for trial in one.trials
            if not trial.warmup
            and trial.cell.source == source
            and trial.cell.state == "pooled"
            and trial.cell.depth == "deps"
            and trial.cell.claims == 1
        ]
        found = means(own) if own else None
        if found is not None:
            return one.header.id, found
    return None
