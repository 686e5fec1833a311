"""Who takes part: a substrate is in when it has made a sandbox and answered, not when it says it could."""

import statistics
from collections.abc import Mapping

import msgspec

from excise.errors import ExciseError
from excise.meter.null import NullSubstrate
from excise.meter.records import Harness, Skipped
from excise.meter.trial import roll_out
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Capabilities, Substrate
from excise.workloads.workload import Workload

_HARNESS_TRIALS = 20


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A substrate that runs here, and what it can do."""

    substrate: Substrate
    capabilities: Capabilities


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Everybody who was tried, in the order of the rows, and who of them work is measured on."""

    seen: Mapping[str, Admitted | Skipped]
    reference: str | None

    @property
    def admitted(self) -> dict[str, Admitted]:
        return {address: one for address, one in self.seen.items() if isinstance(one, Admitted)}

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(one for one in self.seen.values() if isinstance(one, Skipped))

    def nulls(self) -> frozenset[str]:
        """Beside whose actions null actions run: who has no clock inside, and then the reference, which tells their work."""
        blind = {address for address, one in self.admitted.items() if not one.capabilities.guest_clock}
        return frozenset(blind | {self.reference} if blind and self.reference else blind)


async def admit(substrate: Substrate, spec: Spec) -> Admitted | Skipped:
    """Probe, make one sandbox from `spec`, throw it away."""
    try:
        capabilities = await substrate.probe()
        async with Sandbox(substrate, spec):
            pass
    except Exception as error:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
        return Skipped(substrate.address, one_line(error))
    return Admitted(substrate=substrate, capabilities=capabilities)


def one_line(error: Exception) -> str:
    """An error of ours speaks for itself; of another, its name is half of what it says."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ExciseError) else f"{type(error).__name__}: {text}"


async def calibrate(workload: Workload, image: str) -> Harness:
    """What the instrument costs: the same rollout, by the same code, where the substrate does nothing."""
    nothing = NullSubstrate()
    seen = [await roll_out(nothing, workload, image, nulls=False) for _ in range(_HARNESS_TRIALS)]
    rollout_s = statistics.median(one.wall_ns for one in seen) / 1e9
    return Harness(rollout_s=rollout_s, action_s=rollout_s / len(workload.turns("")))
