"""The open loop: rollouts begin when they were to begin, whether or not those before them have ended."""

import asyncio
from collections.abc import Sequence

from excise.clock import now_ns
from excise.errors import ExciseError
from excise.loading.arrivals import Arrival
from excise.loading.tally import NO_POOL, Claim, Tally
from excise.meter.arrivals import until_ns
from excise.sandbox import Sandbox
from excise.substrate import Substrate
from excise.trace import Trace, recording

CLAIM = "claim"
"""The span in which a pool says what was hit."""
_LEASE_S = 600.0
"""How much longer than it is meant to live a rollout's sandbox is leased."""


async def drive(
    substrate: Substrate, arrivals: Sequence[Arrival], tally: Tally, *, wait_s: float, script: str | None = None
) -> None:
    """Run every arrival to its end. `script`: what each rollout runs once in its sandbox, before it holds it.

    Cancelled, it closes every sandbox before it is over; what a claim's failure was is in `tally`, and stops nobody else.
    """
    load = _Load(substrate, tally, wait_s=wait_s, script=script)
    try:
        async with asyncio.TaskGroup() as rollouts:
            for arrival in arrivals:
                late_ns = await until_ns(load.intended_ns(arrival))
                tally.arrived += 1
                rollouts.create_task(load.rollout(arrival, late_ns))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # No error of ours gets here: it is a fault of somebody's, and one is enough.


class _Load:
    def __init__(self, substrate: Substrate, tally: Tally, *, wait_s: float, script: str | None) -> None:
        self._substrate = substrate
        self._tally = tally
        self._wait_s = wait_s
        self._script = script
        self._begun_ns = now_ns()

    def intended_ns(self, arrival: Arrival) -> int:
        return self._begun_ns + round(arrival.at_s * 1e9)

    async def rollout(self, arrival: Arrival, late_ns: int) -> None:
        ttl_s = self._wait_s + arrival.hold_s + _LEASE_S
        labels = {"owner": arrival.owner} if arrival.owner else {}
        box = Sandbox(self._substrate, arrival.spec, ttl_s=ttl_s, wait_s=self._wait_s, labels=labels)
        trace = Trace()
        failure: str | None = None
        with recording(trace):
            try:
                await box.open()
            except ExciseError as error:
                failure = _reason(error)
        self._tally.claimed(
            Claim(
                at_s=arrival.at_s,
                name=arrival.name,
                late_s=late_ns / 1e9,
                claim_s=(now_ns() - self.intended_ns(arrival)) / 1e9,
                hit="" if failure else hit_of(trace),
                owner=arrival.owner,
                failure=failure,
            )
        )
        if failure is None:
            await self._hold(box, arrival.hold_s)

    async def _hold(self, box: Sandbox, hold_s: float) -> None:
        self._tally.holding += 1
        try:
            try:
                if self._script:
                    await box.run(self._script)
                await asyncio.sleep(hold_s)  # The rollout's own time, not a pause for something to happen.
            finally:
                await box.close()
        except ExciseError as error:
            self._tally.lose(_reason(error))
        finally:
            self._tally.holding -= 1
            self._tally.ended += 1


def hit_of(trace: Trace) -> str:
    """What the pool said was hit; the last word counts, for the first may have turned out to be dead."""
    said = [span.kind for span in trace.spans if span.name == CLAIM and span.kind]
    return said[-1] if said else NO_POOL


def _reason(error: ExciseError) -> str:
    return f"{type(error).__name__}: {error}"
