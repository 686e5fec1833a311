"""A pool's figures, put together from what its parts counted and hold."""

import asyncio
import math

from excise.spec import Stage
from excise.substrates.pool.figures import Failing, Figures
from excise.substrates.pool.stock import Stock


def figures_of(stock: Stock, *, claimed: int, filling: int, held_back: str) -> Figures:
    """All of it, now."""
    counts, places = stock.counts, stock.places
    idle = dict.fromkeys((stage.value for stage in Stage), 0)
    idle_bytes = templates = 0
    for entry in stock.shelf:
        if entry.template:
            templates += 1
        else:
            idle[entry.state.stage.value] += 1
        idle_bytes += entry.bytes
    return Figures(
        hits={kind: count for kind, count in counts.hits.items() if kind != "miss"},
        misses=counts.hits["miss"],
        failed=counts.failed,
        claim_s=tuple(counts.claim_s),
        refill_lag_s=tuple(counts.refill_lag_s),
        refilled=counts.refilled,
        unused=counts.unused,
        unused_s=counts.unused_s,
        dead=counts.dead,
        reused=counts.reused,
        discarded=counts.discarded,
        evicted=counts.evicted,
        expired=counts.expired,
        quarantine=tuple(counts.quarantine),
        failing=_failing(stock),
        held_back=held_back,
        idle=idle,
        idle_bytes=idle_bytes,
        templates=templates,
        filling=filling,
        claimed=claimed,
        waiting=places.waiting,
        count=places.count,
        count_cap=places.count_cap,
        memory_bytes=places.memory_bytes,
        memory_cap_bytes=places.memory_cap_bytes,
        cpu_s=counts.cpu_s(),
    )


def _failing(stock: Stock) -> tuple[Failing, ...]:
    failing = [slot for slot in stock.slots.values() if slot.failures]
    if not failing:
        return ()
    now_s = asyncio.get_running_loop().time()
    return tuple(
        Failing(
            state=slot.title,
            reason=slot.reason,
            attempts=slot.failures,
            next_s=None if math.isinf(slot.retry_s) else max(0.0, slot.retry_s - now_s),
        )
        for slot in failing
    )
