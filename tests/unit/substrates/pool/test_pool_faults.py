"""Faults: a source that dies or hangs, a client that gives up at any await, a pool that is closed at any moment."""

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import pytest

from excise.errors import CreateError, ExciseError, SandboxLost, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec, Stage
from excise.substrate import Handle, Snapshot
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.pool import Pool
from excise.substrates.pool.handle import PoolHandle
from pooled import Faulty, check_invariants, claim, on_pool, source, spec


def test_a_source_that_dies_is_a_clear_error_and_idle_ones_are_still_claimed() -> None:
    faulty = Faulty(source())

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        faulty.dead = True
        with pytest.raises(SubstrateError, match="does not answer; start it"):
            await claim(pool, Spec(env={"A": "b"}))
        await claim(pool, spec())
        faulty.dead = False
        await claim(pool, Spec(env={"A": "b"}))

    on_pool(body, policy="none", source=faulty)


@pytest.mark.parametrize("wanted", [Spec(env={"A": "b"}), spec("other")])
def test_a_source_that_hangs_is_told_by_the_deadline_and_others_are_unharmed(wanted: Spec) -> None:
    faulty = Faulty(source())

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        faulty.hangs = True
        late = asyncio.ensure_future(claim(pool, wanted, deadline_s=20.0))
        begun_s = asyncio.get_running_loop().time()
        await claim(pool, spec(), deadline_s=5.0)
        with pytest.raises(CreateError, match="in time"):
            await late
        assert asyncio.get_running_loop().time() - begun_s <= 20.0
        await asyncio.sleep(5)
        assert pool.figures().count == 1

    on_pool(body, policy="none", source=faulty, match="exact")


def test_a_source_that_does_not_even_hear_a_cancellation_holds_its_place_and_no_claimer() -> None:
    deaf = asyncio.Event()

    class Deaf(Faulty):
        async def create(self, *given: object, **named: object) -> object:  # pyright: ignore
            while not deaf.is_set():
                with suppress(asyncio.CancelledError):
                    await deaf.wait()
            raise SubstrateError("at last")

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        with pytest.raises(CreateError):
            async with Sandbox(pool, Spec(), wait_s=10):
                pass
        assert asyncio.get_running_loop().time() < 20
        assert pool.figures().count == 1
        deaf.set()
        await asyncio.sleep(1)
        assert pool.figures().count == 0

    on_pool(body, policy="none", source=Deaf(source()))


async def ready_pool(prepared: str, **options: object) -> tuple[Pool, FakeSubstrate]:
    fake = source()
    pool = Pool(fake, **{"pressure": False, "policy": "none", **options})  # pyright: ignore
    if prepared == "deps":
        await pool.fill(spec())
    elif prepared == "image":
        await pool.fill(spec(), stage=Stage.IMAGE)
    elif prepared == "sibling":
        await pool.fill(spec("other"))
    elif prepared == "template":
        await pool.fill(spec())
        await claim(pool, spec())
    return pool, fake


@pytest.mark.parametrize("prepared", ["nothing", "deps", "image", "sibling", "template"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30])
def test_cancelling_a_claim_at_any_await_leaks_nothing(prepared: str, turns: int) -> None:
    async def run() -> None:
        pool, fake = await ready_pool(prepared)
        before = pool.figures().claimed
        task = asyncio.ensure_future(opened(pool))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await (await task).close()
        check_invariants(pool)
        await asyncio.sleep(100)
        figures = pool.figures()
        assert figures.claimed == before
        assert figures.count == before + sum(figures.idle.values()) == len(await fake.list({}))
        check_invariants(pool)
        await (await claim(pool, spec())).close()
        await pool.close()
        assert (await fake.list({}), await fake.snapshots()) == ((), ())

    virtual_time.run(run())


@pytest.mark.parametrize("prepared", ["nothing", "deps", "image", "sibling", "template"])
@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.9, 1.0, 1.5, 3.0, 6.0, 20.0, 36.2, 37.0])
def test_cancelling_a_claim_at_any_time_leaks_nothing(prepared: str, after_s: float) -> None:
    async def run() -> None:
        pool, fake = await ready_pool(prepared)
        before = pool.figures().claimed
        task = asyncio.ensure_future(opened(pool))
        await asyncio.sleep(after_s)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await (await task).close()
        await asyncio.sleep(100)
        figures = pool.figures()
        assert figures.claimed == before
        assert figures.count == before + sum(figures.idle.values()) == len(await fake.list({}))
        await pool.close()
        assert (await fake.list({}), await fake.snapshots()) == ((), ())

    virtual_time.run(run())


async def opened(pool: Pool) -> Sandbox:
    box = Sandbox(pool, spec())
    await box.open()
    return box


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 2.0, 10.0, 36.0, 37.5, 40.0, 60.0])
def test_a_pool_closed_at_any_time_leaves_nothing(after_s: float) -> None:
    async def run() -> None:
        fake = source()
        pool = Pool(fake, pressure=False, policy="fixed", keep=2)

        async def rollout(number: int) -> None:
            with suppress(ExciseError, RuntimeError):
                async with Sandbox(pool, spec(str(number % 2))):
                    await asyncio.sleep(3)

        tasks = [asyncio.ensure_future(rollout(number)) for number in range(6)]
        await asyncio.sleep(after_s)
        await pool.close()
        await asyncio.wait(tasks, timeout=100)
        assert all(task.done() for task in tasks)
        assert (await fake.list({}), await fake.snapshots()) == ((), ())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert pool.figures().count == 0
        with pytest.raises(CreateError, match="closed"):
            await pool.create(Spec(), deadline_s=5, lease_s=5, labels={}, request_id=uuid.uuid4().hex)

    virtual_time.run(run())


@pytest.mark.parametrize("prepared", ["nothing", "deps", "image", "sibling", "template"])
@pytest.mark.parametrize("turns", range(14))
def test_a_pool_closed_at_any_await_of_a_claim_gives_every_place_back(prepared: str, turns: int) -> None:
    async def run() -> None:
        pool, fake = await ready_pool(prepared)
        task = asyncio.ensure_future(opened(pool))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_open = task.done()
        await pool.close()
        with suppress(ExciseError):
            box = await task
            if not was_open:
                with pytest.raises(SandboxLost):
                    await box.run("true")
            await box.close()
        await asyncio.sleep(10)
        assert pool.figures().count == 0
        assert (await fake.list({}), await fake.snapshots()) == ((), ())

    virtual_time.run(run())


def test_one_that_comes_back_while_the_pool_is_closed_is_closed_with_it() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        handle = await claim(pool, spec())
        await handle.close()
        assert pool.figures().claimed == 0
        assert pool.figures().idle["deps"] == 0  # it is still being looked at
        await pool.close()
        assert pool.figures().quarantine == ()

    on_pool(body, policy="none", reuse="reset", source=source(action_s=0.5))


@pytest.mark.parametrize("after_s", [0.5, 20.0])
def test_a_pool_closed_while_it_is_filled_keeps_nothing(after_s: float) -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        filling = asyncio.ensure_future(pool.fill(spec(), 3))
        await asyncio.sleep(after_s)
        await pool.close()
        with suppress(ExciseError):
            await filling
        await asyncio.sleep(100)
        assert await fake.list({}) == ()

    on_pool(body, policy="none", source=source(create_s=10.0))


def test_a_close_that_is_cancelled_is_carried_to_its_end() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        handle = await claim(pool, spec())
        closing = asyncio.ensure_future(handle.close())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        await asyncio.sleep(5)
        assert (pool.figures().claimed, pool.figures().count) == (0, 0)
        assert await fake.list({}) == ()

    on_pool(body, policy="none", reuse="never")


def test_random_machines_that_die_lose_no_place() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        async def rollout(number: int) -> None:
            with suppress(ExciseError):
                async with Sandbox(pool, spec(str(number % 3)), wait_s=200) as box:
                    for _ in range(5):
                        await box.run("true")

        for _ in range(5):
            await asyncio.gather(*(rollout(number) for number in range(8)))
            check_invariants(pool)
        await asyncio.sleep(300)
        figures = pool.figures()
        assert figures.claimed == 0
        assert figures.count == sum(figures.idle.values())
        assert figures.count == len(await fake.list({}))

    on_pool(body, policy="demand", count=6, source=source(lose=0.05, fail_create=0.1, seed=7, action_s=0.01, jitter=0.3))


class Ending(Faulty):
    """Says what was under way, and what there was, when it was closed."""

    under_way = 0
    at_the_end: tuple[int, int] | None = None

    async def create(self, start: Spec | Snapshot, **named: Any) -> Handle:
        self.under_way += 1
        try:
            return await super().create(start, **named)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # a daemon is asked to take back what it did
            raise
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        self.at_the_end = self.under_way, len(await self.fake.list({}))
        await self.fake.close()


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.2])
def test_a_pool_that_is_closed_under_claims_ends_them_before_its_source(after_s: float) -> None:
    ending = Ending(source())

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        wanted = [Spec(env={"N": str(number)}) for number in range(6)]
        claims = [asyncio.ensure_future(claim(pool, one)) for one in wanted]
        await asyncio.sleep(after_s)
        begun_s = asyncio.get_running_loop().time()
        await pool.close()
        assert asyncio.get_running_loop().time() - begun_s < 0.7  # what is made is given up, not waited for
        assert ending.at_the_end == (0, 0)
        for outcome in await asyncio.gather(*claims, return_exceptions=True):
            assert isinstance(outcome, CreateError | SandboxLost | PoolHandle), outcome

    on_pool(body, source=ending, count=4, policy="none", reuse="never")
