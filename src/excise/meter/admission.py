"""Who takes part: a substrate is in when it has made a sandbox and answered, not when it says it could."""

import statistics
from collections.abc import Mapping

import msgspec

from excise.errors import CapacityError, CreateError, ReadyTimeout, SandboxLost
from excise.meter.null import NullSubstrate
from excise.meter.places import Recreate, Unpulled
from excise.meter.privacy import one_line, without_home
from excise.meter.records import Harness, Skipped
from excise.meter.trial import roll_out
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Capabilities, Substrate
from excise.workloads.workload import Workload

_HARNESS_TRIALS = 20
TRIES = 3
"""One of five creates may fail and still 99 of 100 runs have the row."""


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A substrate that runs here, and what it can do."""

    substrate: Substrate
    capabilities: Capabilities


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Everybody who was tried, in the order of the rows, and who of them work is measured on."""

    seen: Mapping[str, Admitted | Skipped]
    reference: str | None
    fresh: Unpulled | None = None
    """Where images come from that nobody has; None: there are none."""

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


async def admit(substrate: Substrate, spec: Spec, address: str | None = None) -> Admitted | Skipped:
    """Probe, make one sandbox from `spec`, throw it away. `address`: as it was asked for, if not as it calls itself.

    Who fails now and then is let in, and its failures are counted; only who fails every time is left out.
    """
    try:
        capabilities = await substrate.probe()
        await _make_one(substrate, spec)
    except Exception as error:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
        return Skipped(address or substrate.address, without_home(one_line(error)))
    return Admitted(substrate=substrate, capabilities=capabilities)


async def _make_one(substrate: Substrate, spec: Spec) -> None:
    for tries_left in reversed(range(TRIES)):
        try:
            async with Sandbox(substrate, spec):
                return
        except (CapacityError, CreateError, ReadyTimeout, SandboxLost):
            if not tries_left:
                raise


async def calibrate(workload: Workload, image: str) -> Harness:
    """What the instrument costs: the same rollout, by the same code, where the substrate does nothing."""
    nowhere = Recreate(NullSubstrate(), workload.spec(image))
    seen = [await roll_out(nowhere, workload) for _ in range(_HARNESS_TRIALS)]
    rollout_s = statistics.median(one.wall_ns for one in seen) / 1e9
    return Harness(rollout_s=rollout_s, action_s=rollout_s / len(workload.turns("")))
