"""Hard caps: never above them, and what is waited for is had, or refused in time."""

import asyncio

import pytest

from excise.errors import CapacityError, SpecError
from excise.sandbox import Sandbox
from excise.spec import Spec, Stage
from excise.substrates.fake import FakeSubstrate
from excise.substrates.pool import Pool
from excise.substrates.pool.places import Places
from excise.substrates.pool.settings import FLOOR_BYTES
from pooled import check_invariants, claim, idle_of, on_pool, spec


def other(number: int) -> Spec:
    return Spec(env={"N": str(number)})


def test_a_claim_beyond_the_cap_waits_for_a_place_and_gets_it() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        first, second = await claim(pool, other(1)), await claim(pool, other(2))
        waiting = asyncio.ensure_future(claim(pool, other(3)))
        await asyncio.sleep(20)
        assert not waiting.done()
        assert pool.figures().waiting == 1
        await first.close()
        third = await waiting
        assert (await pool.attach(third.id), pool.figures().count) == (third, 2)
        await second.close()

    on_pool(body, policy="none", count=2)


def test_a_claim_that_waits_to_its_deadline_is_told_so() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        held = await claim(pool, other(1))
        with pytest.raises(CapacityError, match=r"pool\.count"):
            async with Sandbox(pool, other(2), wait_s=10):
                pass
        with pytest.raises(CapacityError, match=r"pool\.count"):
            async with Sandbox(pool, spec(), wait_s=10):  # one that would be built for several
                pass
        await held.close()
        async with Sandbox(pool, other(2), wait_s=10):
            pass

    on_pool(body, policy="none", count=1)


def test_the_idle_make_room_for_a_claim() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(other(1), 2)
        await claim(pool, other(2))
        assert (pool.figures().evicted, pool.figures().count) == (1, 2)

    on_pool(body, policy="none", count=2)


def test_where_there_is_no_place_a_far_idle_one_is_better_than_waiting() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await claim(pool, Spec())
        await pool.fill(spec(), stage=Stage.IMAGE)
        await claim(pool, spec())
        assert pool.figures().hits["image"] == 1

    on_pool(body, policy="none", count=2, reuse="never")


def test_who_waits_gets_what_comes_back_though_it_is_not_closed() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        first = await claim(pool, spec())
        waiting = asyncio.ensure_future(claim(pool, spec()))
        await asyncio.sleep(5)
        await first.close()
        second = await waiting
        assert second.id == first.id
        assert pool.figures().evicted == 0

    on_pool(body, policy="none", count=1, reuse="reset")


def test_who_waits_for_another_state_gets_the_place_of_what_comes_back() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        first = await claim(pool, spec())
        waiting = asyncio.ensure_future(claim(pool, other(1)))
        await asyncio.sleep(5)
        await first.close()
        await waiting
        assert pool.figures().evicted == 1

    on_pool(body, policy="none", count=1, reuse="reset")


def test_fork_counts_against_the_cap() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        async with Sandbox(pool, Spec(), wait_s=10) as box:
            with pytest.raises(CapacityError):
                async with box.fork(3):
                    pass
            async with box.fork(2):
                check_invariants(pool)

    on_pool(body, policy="none", count=3)


def test_many_claims_under_a_small_cap_all_come_through_and_never_exceed_it() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        most = 0

        async def rollout(number: int) -> None:
            nonlocal most
            handle = await claim(pool, spec(str(number % 3)))
            most = max(most, len(await fake.list({})))
            check_invariants(pool)
            await asyncio.sleep(number % 5)
            await handle.close()

        await asyncio.gather(*(rollout(number) for number in range(24)))
        assert most <= 4

    on_pool(body, count=4, policy="demand")


def test_memory_is_capped_templates_included() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        for number in range(6):
            await pool.fill(other(number))
            check_invariants(pool)
        assert pool.figures().memory_bytes <= 4 * FLOOR_BYTES
        assert pool.figures().evicted > 0

    on_pool(body, policy="none", memory=4 * FLOOR_BYTES)


def test_a_state_that_is_larger_than_the_memory_is_refused_once_that_is_known() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        big = Spec(steps=(spec().steps[0], spec().steps[1]))
        await pool.fill(big)
        slot = next(slot for slot in pool._stock.slots.values() if slot.done == 2)
        slot.size_bytes = 5 * FLOOR_BYTES
        for handle in idle_of(pool):
            await handle.close()
        with pytest.raises(SpecError, match=r"pool\.memory"):
            await claim(pool, big)
        await claim(pool, other(1))

    on_pool(body, policy="none", memory=4 * FLOOR_BYTES, reuse="never")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "less than one sandbox"),
        ({"memory": FLOOR_BYTES - 1}, "less than one sandbox"),
        ({"memory": "much"}, "MiB"),
        ({"parallel": 0}, "parallel"),
        ({"percentile": 1.0}, "percentile"),
        ({"idle_s": 0.0}, "idle_s"),
        ({"lease_s": float("inf")}, "lease_s"),
        ({"policy": "fixed", "keep": 0}, "keep"),
        ({"policy": "demand", "keep": 2}, "keep"),
        ({"policy": "fixed", "keep": 3, "count": 2}, "keep"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_made(options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pool(FakeSubstrate(), **options)  # pyright: ignore


def test_places_are_served_in_order_and_given_back_by_who_gives_up() -> None:
    async def run() -> None:
        places = Places(1, None)
        assert places.take(1)
        first, second, third = (places.ask(1) for _ in range(3))
        assert not places.take(1)
        second.cancel()
        places.leave(second, 1)
        places.give(1)
        assert (first.done(), third.done(), places.count) == (True, False, 1)
        places.leave(first, 1)  # it was given, and given up in the same moment
        assert (third.result(), places.count) == (True, 1)
        places.give(1)
        assert (places.count, places.memory_bytes, places.waiting) == (0, 0, 0)

    asyncio.run(run())


def test_what_was_made_for_claims_is_theirs_and_makes_no_room_for_who_waits() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        held = await claim(pool, other(1))
        waiting = [asyncio.ensure_future(claim(pool, spec(commit))) for commit in ("one", "two", "one", "three")]
        await asyncio.sleep(1)
        await held.close()
        for served in asyncio.as_completed(waiting):
            await (await served).close()
        assert pool.figures().unused == 0

    on_pool(body, policy="none", count=1, reuse="never")


def test_what_was_made_in_advance_is_shown_to_who_waits_before_it_makes_room() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        filling = asyncio.ensure_future(pool.fill(other(1)))
        await asyncio.sleep(0.5)  # a place is taken for it
        waiting = [asyncio.ensure_future(claim(pool, other(number))) for number in (1, 2)]
        for served in waiting:
            await (await served).close()
        await filling
        assert (pool.figures().evicted, pool.figures().unused) == (0, 0)

    on_pool(body, policy="none", count=1, reuse="never")


def test_a_template_is_kept_though_others_wait_for_a_place() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        waiting = [asyncio.ensure_future(claim(pool, spec(commit))) for commit in ("one", "two", "one", "one")]
        for served in asyncio.as_completed(waiting):
            await (await served).close()
        assert pool.figures().templates == 2

    on_pool(body, policy="none", count=1, reuse="never")


def test_a_pool_belongs_to_the_event_loop_it_was_opened_in(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool("fake", policy="none", pressure=False)
    asyncio.run(pool.fill(other(1), 2))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(claim(pool, other(1)))
    asyncio.run(pool.close())
    assert caplog.messages == []
