"""What the pool does by itself: bounded, backing off, expiring, and renewing what it holds."""

import asyncio
import math
from pathlib import Path

import pytest

from excise.action import Shell
from excise.errors import CreateError, SpecError
from excise.spec import Limits, Spec, Step
from excise.substrates.fake import FakeSubstrate
from excise.substrates.pool import Pool
from excise.substrates.pool.pressure import host_pressure
from excise.substrates.pool.refill import MOST_FAILURES
from pooled import Faulty, claim, idle_of, on_pool, source, spec


def test_a_fixed_number_is_kept_of_what_was_asked_for() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        handle = await claim(pool, spec())
        await asyncio.sleep(200)
        assert pool.figures().idle["deps"] == 3
        await claim(pool, spec())
        await asyncio.sleep(200)
        assert pool.figures().idle["deps"] == 3
        assert all(lag_s < 100 for lag_s in pool.figures().refill_lag_s)
        await handle.close()

    on_pool(body, policy="fixed", keep=3, reuse="never")


def test_demand_holds_one_of_what_is_asked_for_again_and_nothing_of_what_is_not() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await (await claim(pool, Spec(env={"ONCE": "1"}))).close()
        await asyncio.sleep(30)
        assert sum(pool.figures().idle.values()) == 0
        for _each in range(2):
            await (await claim(pool, Spec())).close()
        await asyncio.sleep(5)
        assert pool.figures().idle["image"] == 1

    on_pool(body, reuse="never")


def test_demand_holds_more_of_what_is_asked_for_faster_than_it_is_made() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        for _each in range(60):
            await (await claim(pool, spec())).close()
            await asyncio.sleep(1)
        assert pool.figures().hits["deps"] > 30
        assert pool.figures().idle["deps"] > 2

    on_pool(body, reuse="never", match="exact", source=source(create_s=20.0))


def test_what_is_made_ahead_has_the_terms_that_were_asked_for_last() -> None:
    """A trainer whose limits changed does not pay for the change with every claim."""

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        for pids in (64, 128):
            wanted = spec(limits=Limits(pids=pids))
            await (await claim(pool, wanted)).close()
            await pool.fill(wanted, 2)
            assert [one.spec.limits.pids for one in idle_of(pool)] == [pids] * 2
            for handle in [await claim(pool, wanted) for _each in range(2)]:
                await handle.close()

    on_pool(body, policy="none", reuse="never")


def test_what_is_said_to_come_is_made_and_not_expected_again() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.expect([spec("one"), spec("two")], group=4)
        await asyncio.sleep(400)
        assert pool.figures().idle["deps"] == 8
        handles = [await claim(pool, spec("one")) for _ in range(4)]
        assert pool.figures().hits["deps"] == 4
        for handle in handles:
            await handle.close()
        await asyncio.sleep(400)
        assert pool.figures().idle["deps"] == 4
        with pytest.raises(SpecError):
            await pool.expect([spec()], group=0)

    on_pool(body, policy="schedule", reuse="never")


def test_a_group_that_is_far_off_is_not_made_yet() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.expect([spec()], group=2, in_s=[1000.0])
        await asyncio.sleep(500)
        assert sum(pool.figures().idle.values()) == 0
        await asyncio.sleep(500)
        assert pool.figures().idle["deps"] == 2

    on_pool(body, policy="schedule", reuse="never")


def test_no_more_than_parallel_are_made_at_once() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.expect([spec(str(number)) for number in range(5)], group=4)
        most = 0
        for _each in range(200):
            await asyncio.sleep(0.5)
            most = max(most, pool.figures().filling)
        assert most == 3

    on_pool(body, policy="schedule", parallel=3)


def test_a_step_that_keeps_failing_is_tried_less_and_less_then_not_and_the_reason_is_shown() -> None:
    broken = Spec(steps=(Step("breaks", (Shell("echo no-network; false"),)),))

    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.expect([broken], group=2)
        await asyncio.sleep(1.8)
        (failing,) = pool.figures().failing
        assert failing.next_s is not None
        await asyncio.sleep(100_000)
        (failing,) = pool.figures().failing
        assert failing.next_s is None
        assert "no-network" in failing.reason
        assert MOST_FAILURES <= failing.attempts <= MOST_FAILURES + 4  # those that were under way

    on_pool(body, policy="schedule")


def test_a_claim_that_succeeds_clears_the_reason() -> None:
    faulty = Faulty(source())

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        faulty.dead = True
        await pool.expect([Spec()], group=1)
        await asyncio.sleep(1000)
        assert pool.figures().failing[0].next_s is None
        faulty.dead = False
        await claim(pool, Spec())
        await asyncio.sleep(10)
        assert pool.figures().failing == ()

    on_pool(body, policy="schedule", source=faulty)


def test_nothing_is_made_in_advance_under_pressure() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        said = "tasks waited for memory 50 % of the last 10 s"
        pool._refill._pressure = lambda: said
        await pool.expect([spec()], group=2)
        await asyncio.sleep(100)
        assert pool.figures().held_back == said
        assert sum(pool.figures().idle.values()) == 0
        await claim(pool, Spec())  # claims are served all the same
        said = ""
        await asyncio.sleep(100)
        assert (pool.figures().held_back, pool.figures().idle["deps"]) == ("", 2)

    on_pool(body, policy="schedule")


def test_what_is_said_to_come_and_does_not_is_kept_without_planning_again_and_again() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.expect([spec()], group=1)
        await asyncio.sleep(200)
        assert pool.figures().idle["deps"] == 1
        timer = pool._refill._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() > 10.0

    on_pool(body, policy="none", idle_s=60.0, lease_s=3000.0)


def test_what_nobody_asks_for_expires_templates_too() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        assert pool.figures().templates == 1
        await asyncio.sleep(70)
        assert sum(pool.figures().idle.values()) == 0
        assert (pool.figures().templates, pool.figures().expired, pool.figures().unused) == (0, 3, 2)
        assert pool.figures().count == 0

    on_pool(body, policy="none", idle_s=60.0)


def test_leases_of_the_idle_are_renewed_and_a_claim_has_its_own() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        await asyncio.sleep(95)
        assert await fake.collect() == ()
        handle = await pool.create(spec(), deadline_s=10, lease_s=20, labels={}, request_id="r")
        await handle.ready()
        await asyncio.sleep(25)
        assert await pool.collect() == (handle.id,)
        assert len(idle_of(pool)) == 1

    on_pool(body, policy="none", lease_s=30.0)


def test_fill_raises_what_goes_wrong() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        with pytest.raises(CreateError, match="breaks"):
            await pool.fill(Spec(steps=(Step("breaks", (Shell("false"),)),)), 3)
        assert pool.figures().count == 0 or math.isfinite(pool.figures().count)

    on_pool(body, policy="none")


def test_pressure_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert host_pressure(tmp_path) == ""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\n")
    for what, percent in (("cpu", 20), ("io", 3), ("memory", 0)):
        (tmp_path / "pressure" / what).write_text(f"some avg10={percent}.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00\n")
    assert host_pressure(tmp_path) == ""
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 20 kB\n")
    assert "2.0%" in host_pressure(tmp_path)
    (tmp_path / "pressure" / "memory").write_text("some avg10=37.50 avg60=0.00 avg300=0.00 total=1\n")
    assert "memory 38 %" in host_pressure(tmp_path)
