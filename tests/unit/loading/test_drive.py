"""The open loop on the pretend substrate: nothing hides a stall, and one rollout's failure is nobody else's."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from excise.errors import CapacityError
from excise.loading.arrivals import Arrival, burst
from excise.loading.drive import drive, hit_of
from excise.loading.processor import spent
from excise.loading.specs import Wanted
from excise.loading.tally import Claim, Tally
from excise.spec import Spec
from excise.substrate import Snapshot
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.handle import FakeHandle
from excise.trace import Span, Trace

ONE = (Wanted(name="a", spec=Spec()),)


class OneAtATime(FakeSubstrate):
    """Makes one sandbox after another, each in a second: a source that stalls."""

    def __init__(self) -> None:
        super().__init__(create_s=1.0)
        self._turn = asyncio.Lock()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> FakeHandle:
        async with self._turn:
            return await super().create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)


def arriving(*times_s: float, hold_s: float = 0.0) -> list[Arrival]:
    return [Arrival(at_s=at_s, name="a", spec=Spec(), hold_s=hold_s) for at_s in times_s]


def test_a_stall_is_counted_from_the_intended_start() -> None:
    tally = Tally()

    async def load() -> None:
        await drive(OneAtATime(), arriving(0, 0.5, 1.0, 1.5), tally, wait_s=60)

    virtual_time.run(load())
    assert [round(one.claim_s, 6) for one in tally.claims] == [1.0, 1.5, 2.0, 2.5]


def test_arrivals_do_not_wait_for_each_other() -> None:
    substrate = FakeSubstrate(create_s=1.0)
    tally = Tally()
    virtual_time.run(drive(substrate, arriving(0, 0.5, 1.0, hold_s=100), tally, wait_s=60))
    assert [(one.at_s, one.claim_s) for one in tally.claims] == [(0, 1), (0.5, 1), (1, 1)]
    assert (tally.arrived, tally.ended, tally.holding, tally.waiting) == (3, 3, 0, 0)


def test_a_loop_that_was_busy_is_late_and_says_so() -> None:
    tally = Tally()

    async def load() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        loop.call_at(1.0, lambda: setattr(loop, "_virtual_s", 4.0))  # somebody keeps the loop busy from second 1 to 4
        await drive(FakeSubstrate(), arriving(2.0), tally, wait_s=60)

    virtual_time.run(load())
    assert tally.claims[0].late_s == pytest.approx(2.0)
    assert tally.claims[0].claim_s == pytest.approx(2.0)


def test_a_failed_claim_is_counted_and_stops_nobody() -> None:
    class Full(FakeSubstrate):
        made = 0

        async def create(
            self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
        ) -> FakeHandle:
            self.made += 1
            if self.made == 2:
                raise CapacityError("there is no place; try elsewhere")
            return await super().create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)

    tally = Tally()
    virtual_time.run(drive(Full(), arriving(0, 1, 2), tally, wait_s=60))
    assert dict(tally.failures) == {"CapacityError: there is no place; try elsewhere": 1}
    assert (len(tally.claims), sum(tally.hits().values()), tally.lost) == (3, 2, 0)


def test_a_sandbox_that_dies_under_its_rollout_is_lost_and_no_failed_claim() -> None:
    tally = Tally()
    substrate = FakeSubstrate(lose=1.0)
    virtual_time.run(drive(substrate, arriving(0), tally, wait_s=60, script="true"))
    assert (tally.failures.total(), tally.lost) == (0, 1)
    assert "SandboxLost" in next(iter(tally.losses))


def test_a_fault_of_somebodys_ends_the_load_as_itself() -> None:
    class Wrong(FakeSubstrate):
        async def create(self, *_: object, **__: object) -> FakeHandle:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        virtual_time.run(drive(Wrong(), arriving(0, 100), Tally(), wait_s=60))


def test_cancelled_it_closes_every_sandbox() -> None:
    substrate, tally = FakeSubstrate(create_s=0.5), Tally()

    async def load() -> int:
        task = asyncio.create_task(drive(substrate, [*arriving(0, 1, hold_s=1000), *arriving(1.9)], tally, wait_s=60))
        await asyncio.sleep(2.0)  # two hold theirs, one is being made
        assert len(await substrate.list({})) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(await substrate.list({}))

    assert virtual_time.run(load()) == 0
    assert (tally.arrived, tally.holding, tally.waiting) == (3, 0, 1)


def test_the_owner_is_a_label() -> None:
    substrate, tally = FakeSubstrate(), Tally()

    async def load() -> int:
        wanted = (Wanted(name="a", spec=Spec(), owner="ann"),)
        task = asyncio.create_task(drive(substrate, burst(2, None, 1, wanted, hold_s=5, seed=1), tally, wait_s=9))
        await asyncio.sleep(1)
        found = len(await substrate.list({"owner": "ann"}))
        await task
        return found

    assert virtual_time.run(load()) == 2


def test_the_last_claim_of_a_trace_says_what_was_hit() -> None:
    trace = Trace()
    assert hit_of(trace) == "created"
    trace.spans = [Span("claim", "s", 0, 1, "deps"), Span("ready", "s", 1, 2, "x"), Span("claim", "s", 2, 3, "miss")]
    assert hit_of(trace) == "miss"


def test_quantiles_are_of_what_succeeded() -> None:
    tally = Tally()
    for claim_s, hit in ((0.3, "deps"), (0.1, "deps"), (5.0, "miss"), (0.2, "odd")):
        tally.claimed(Claim(at_s=0, name="a", late_s=0, claim_s=claim_s, hit=hit))
    tally.claimed(Claim(at_s=0, name="a", late_s=0, claim_s=900, failure="CreateError: no"))
    assert tally.hits() == {"deps": 2, "miss": 1, "odd": 1}
    assert tally.quantile_s(1.0) == 5.0
    assert tally.quantile_s(0.5, "deps") == pytest.approx(0.2)
    assert tally.quantile_s(0.5, "repo") is None
    assert [tally.within(bound, "deps") for bound in (0.05, 0.1, 0.2, 0.3)] == [0, 1, 1, 2]


def test_the_seconds_of_children_are_counted_alive_and_dead() -> None:
    """A grandchild that burns is counted while it burns, through a parent that only waits, and once it has been waited for."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"
    script = f"import subprocess, sys; raise SystemExit(subprocess.call([sys.executable, '-c', {burn!r}]))"
    before = spent()
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"burnt\n"
        alive = spent() - before
        process.communicate(b"\n")
    dead = spent() - before
    assert alive.children_s >= 0.3 - 2 * tick_s
    assert dead.children_s >= alive.children_s - 4 * tick_s
    assert alive.host_s >= 0.3 - 4 * tick_s
