"""How well the model predicts: a measured workload is held out, predicted from another, and the two are compared.

What is known of the one held out is its work and its set-up on the reference, how long it is and how many commands set it up;
its time on a substrate comes from what another workload paid there.
"""

import statistics
from collections.abc import Sequence

import msgspec

from excise.economics.demand import Demand, Prices, on_host
from excise.economics.evidence import Evidence, Samples
from excise.economics.measured import Measured
from excise.economics.model import Way
from excise.economics.ways import find
from excise.stats.estimate import Estimate
from excise.stats.jackknife import joined
from excise.stats.rows import Row
from excise.stats.run import Run

SETUP_ACTIONS = {"t0": 0, "t1": 2, "t2": 1}
"""Commands that set a tier up: the repository is written into the sandbox, and for T1 checked out there."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One substrate, one workload from another."""

    address: str
    known: str
    held_out: str
    predicted_s: float
    measured_s: float
    ratio: Estimate
    """Predicted to measured, within blocks."""

    @property
    def error(self) -> float:
        return self.ratio.value - 1

    @property
    def holds(self) -> bool:
        """The interval of the ratio has one in it: nothing speaks against the prediction."""
        return self.ratio.low is not None and self.ratio.high is not None and self.ratio.low <= 1 <= self.ratio.high


def held_out(run: Run, known: str, target: str) -> tuple[Prediction, ...]:
    """Every substrate with a plain row of both workloads in `run`."""
    measured = Measured(runs=(run,))
    origin = run.header.provenance
    prices = on_host(Prices(), origin.cores, origin.memory_bytes)
    ways = find(measured, Demand(), prices, known).ways
    found = [_predicted(run, way, target) for way in ways if way.state == "fresh"]
    return tuple(one for one in found if one is not None)


def _predicted(run: Run, way: Way, target: str) -> Prediction | None:
    there = _plain(run, way.address, target)
    if there is None or there.reference or there.blocks is None:
        return None
    beside = run.reference_row(there)
    own = way.evidence.parts[run.header.id]
    if beside is None or beside.blocks is None:
        return None
    both = joined({"": own, "there.": there.blocks, "floor.": beside.blocks})
    if both is None:
        return None
    evidence = Evidence({run.header.id: both})
    setups = SETUP_ACTIONS.get(target.partition("?")[0], 0)

    def predicted(samples: Samples) -> float:
        sums = samples[run.header.id]
        rollouts = sums["floor.rollouts"]
        demand = Demand(actions=there.actions, work_s=sums["floor.work"] / rollouts)
        seconds = way.seconds(samples, demand)
        # Its own set-up goes out, that of the one held out comes in, with as many commands as it has.
        setup_s = sums["floor.setup"] / rollouts - sums["own.setup"] / sums["own.rollouts"]
        return seconds.occupied_s + setup_s + setups * seconds.dispatch_s / demand.actions

    def measured(samples: Samples) -> float:
        sums = samples[run.header.id]
        return sums["there.total"] / sums["there.rollouts"]

    return Prediction(
        address=way.address,
        known=way.workload,
        held_out=target,
        predicted_s=predicted(evidence.whole),
        measured_s=measured(evidence.whole),
        ratio=evidence.estimate(lambda samples: predicted(samples) / measured(samples)),
    )


def _plain(run: Run, address: str, workload: str) -> Row | None:
    cells = (row for row in run.rows if row.address == address and row.cell.workload == workload and not row.cell.factors())
    return next(cells, None)


def median_error(found: Sequence[Prediction]) -> float:
    """Of its size, whichever side it is on."""
    return statistics.median(abs(one.error) for one in found)
