"""A pool's figures, and those of a load on it, as metrics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from excise.loading.exposition import Family, Histogram, Labels
from excise.loading.processor import Spent
from excise.loading.tally import Tally
from excise.stats.quantile import point

if TYPE_CHECKING:  # What measures may use this room, and must not load a substrate with it.
    from excise.substrates.pool.figures import Figures

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""From a claim that finds all it wants to one that clones and installs."""


def of_pool(figures: "Figures") -> list[Family]:
    """Everything that `Pool.figures()` says, for `exposition.text`. Reasons are left out: each would be a series of its own."""
    hits = {**figures.hits, "miss": figures.misses}
    return [
        _by("claims_total", "counter", "Claims that succeeded, by what they found.", "hit", hits),
        _counter("claim_failures_total", "Claims that raised.", figures.failed),
        _recent("recent_claim_seconds", "How long the last claims took from being asked for to ready.", figures.claim_s),
        _recent("recent_refill_lag_seconds", "From wanted on the shelf to being there, last refills.", figures.refill_lag_s),
        _counter("refills_total", "Sandboxes made in advance.", figures.refilled),
        _counter("unused_total", "Sandboxes made in advance and closed without a claim.", figures.unused),
        _counter("unused_seconds_total", "Seconds that making those took.", figures.unused_s),
        _counter("dead_total", "Sandboxes found dead at a claim.", figures.dead),
        _counter("reused_total", "Sandboxes shelved again after a rollout.", figures.reused),
        _counter("discarded_total", "Sandboxes closed after a rollout.", figures.discarded),
        _counter("evicted_total", "Idle sandboxes closed for others' sake.", figures.evicted),
        _counter("expired_total", "Idle sandboxes that nobody asked for in time.", figures.expired),
        _counter("quarantined_total", "Sandboxes that were not clean after their reset.", len(figures.quarantine)),
        _gauge("failing_states", "States whose refill fails.", len(figures.failing)),
        _gauge("held_back", "1 while nothing is made in advance.", float(bool(figures.held_back))),
        _by("idle", "gauge", "Idle sandboxes by depth.", "depth", figures.idle),
        _gauge("idle_bytes", "Memory of idle sandboxes.", figures.idle_bytes),
        _gauge("templates", "Snapshots that sandboxes are made of.", figures.templates),
        _gauge("filling", "Sandboxes in the making.", figures.filling),
        _gauge("claimed", "Sandboxes that rollouts hold.", figures.claimed),
        _gauge("waiting", "Claims that wait for a place.", figures.waiting),
        _gauge("count", "Sandboxes that count against the cap.", figures.count),
        _gauge("count_cap", "How many there may be.", figures.count_cap),
        _gauge("memory_bytes", "Memory that counts against the cap.", figures.memory_bytes),
        _gauge("memory_cap_bytes", "How much there may be.", figures.memory_cap_bytes),
        _counter("cpu_seconds_total", "Processor time of this process and the children it waited for.", figures.cpu_s),
    ]


def of_load(tally: Tally, spent: Spent) -> list[Family]:
    """What a load on a substrate says of it; times are from when a rollout was to begin."""
    seconds = {"own": spent.own_s, "children": spent.children_s, "host": spent.host_s}
    return [
        _counter("arrivals_total", "Rollouts that have arrived.", tally.arrived, "load"),
        Family(
            name="excise_load_claim_seconds",
            kind="histogram",
            help="From when a rollout was to begin to its sandbox being ready, by what its claim found.",
            samples=[({"hit": hit}, _histogram(tally, hit, count)) for hit, count in tally.hits().items()],
        ),
        _counter("claim_failures_total", "Rollouts that got no sandbox.", tally.failures.total(), "load"),
        _counter("lost_total", "Sandboxes that did not live until their rollout's end.", tally.lost, "load"),
        _gauge("waiting", "Rollouts that wait for their sandbox.", tally.waiting, "load"),
        _gauge("holding", "Rollouts that have a sandbox.", tally.holding, "load"),
        _by("cpu_seconds_total", "counter", "Processor time since the load began.", "of", seconds, of="load"),
    ]


def _histogram(tally: Tally, hit: str, count: int) -> Histogram:
    within = [(bound, tally.within(bound, hit)) for bound in BOUNDS_S]
    return Histogram(within=within, count=count, total=tally.total_s(hit))


def _counter(name: str, about: str, value: float, of: str = "pool") -> Family:
    return Family(name=f"excise_{of}_{name}", kind="counter", help=about, samples=[({}, value)])


def _gauge(name: str, about: str, value: float | None, of: str = "pool") -> Family:
    return Family(name=f"excise_{of}_{name}", kind="gauge", help=about, samples=[] if value is None else [({}, value)])


def _by(
    name: str, kind: Literal["counter", "gauge"], about: str, label: str, values: Mapping[str, float], *, of: str = "pool"
) -> Family:
    samples: list[tuple[Labels, float | Histogram]] = [({label: key}, value) for key, value in values.items()]
    return Family(name=f"excise_{of}_{name}", kind=kind, help=about, samples=samples)


def _recent(name: str, about: str, values: Sequence[float]) -> Family:
    """Quantiles of a window that moves: a gauge each, for they are no totals."""
    ordered = sorted(values)
    levels = (0.5, 0.95) if ordered else ()
    samples: list[tuple[Labels, float | Histogram]] = [({"quantile": f"{q:g}"}, point(ordered, q)) for q in levels]
    return Family(name=f"excise_pool_{name}", kind="gauge", help=about, samples=samples)
