"""Claims: the closest, alive and clean, with the claim's own terms; and that identical misses build once."""

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from excise.action import Shell
from excise.errors import CreateError, SandboxLost, SpecError
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec, Stage, Step
from excise.substrate import Handle, Snapshot
from excise.substrates.fake import FakeSubstrate
from excise.substrates.pool import Pool
from excise.trace import Trace, recording, span
from pooled import (
    CLONE_S,
    INSTALL,
    INSTALL_S,
    SWITCH_S,
    Faulty,
    check_invariants,
    claim,
    clone,
    idle_of,
    on_pool,
    read,
    source,
    spec,
)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def took_s(pool: Pool, wanted: Spec) -> float:
    begun_s = now_s()
    await (await claim(pool, wanted)).close()
    return now_s() - begun_s


def test_the_very_state_is_claimed_and_nothing_is_left_to_do() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        begun_s = now_s()
        handle = await claim(pool, spec())
        assert now_s() - begun_s < 0.1
        assert (await read(handle, "commit"), await read(handle, "deps")) == ("one", "installed")
        assert pool.figures().hits["deps"] == 1

    on_pool(body, policy="none")


def test_a_sibling_commit_is_switched_and_its_dependencies_stay() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec("one"))
        begun_s = now_s()
        handle = await claim(pool, spec("two"))
        assert SWITCH_S <= now_s() - begun_s < CLONE_S
        assert (await read(handle, "commit"), await read(handle, "deps")) == ("two", "installed")
        assert pool.figures().hits["sibling"] == 1

    on_pool(body, policy="none")


def test_exact_match_does_not_take_a_sibling() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec("one"))
        begun_s = now_s()
        await claim(pool, spec("two"))
        assert now_s() - begun_s >= CLONE_S + INSTALL_S
        assert pool.figures().misses == 1

    on_pool(body, policy="none", match="exact")


def test_the_repository_is_nearer_than_the_image_and_missing_steps_are_finished() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec(), stage=Stage.IMAGE)
        await pool.fill(spec(), stage=Stage.REPO)
        begun_s = now_s()
        handle = await claim(pool, spec())
        assert INSTALL_S <= now_s() - begun_s < INSTALL_S + CLONE_S
        assert await read(handle, "deps") == "installed"
        assert pool.figures().hits["repo"] == 1

    on_pool(body, policy="none")


def test_terms_are_applied_at_the_claim() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(Spec())
        wanted = Spec(secrets={"TOKEN": Secret("hush")}, boot=(Shell("sleep 1000"),), limits=Limits(pids=7))
        handle = await claim(pool, wanted)
        assert pool.figures().hits["image"] == 1
        assert await read(handle, "/dev/null") == ""
        assert (await handle.run(Shell('printf "$TOKEN"'))).stdout == b"hush"
        source_handle = handle.held.handle
        assert source_handle is not None
        assert source_handle.spec.limits.pids == 7  # pyright: ignore

    on_pool(body, policy="none")


def test_the_trace_says_what_was_hit() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        with recording(Trace()) as trace:
            async with Sandbox(pool, spec()), Sandbox(pool, Spec(env={"A": "b"})):
                pass
        assert [one.kind for one in trace.spans if one.name == "claim"] == ["deps", "miss"]

    on_pool(body, policy="none", reuse="never")


def test_refill_and_reuse_are_in_no_trace() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        with recording(Trace()) as trace:
            for _each in range(3):
                async with Sandbox(pool, spec()):
                    pass
            await asyncio.sleep(300)
        assert pool.figures().refilled >= 1
        sandboxes = {one.sandbox for one in trace.spans}
        assert len(sandboxes) == 3
        assert {one.name for one in trace.spans} <= {"claim", "create", "ready", "setup", "cleanup"}

    on_pool(body, policy="fixed", keep=2)


class Telling(Faulty):
    """Says in whose trace it works."""

    async def create(self, start: Spec | Snapshot, **named: Any) -> Handle:
        with span("made", named["request_id"]):
            return await super().create(start, **named)


def test_what_is_built_for_all_is_in_nobodys_trace() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        with recording(Trace()) as trace:
            await claim(pool, spec())
        assert [one.name for one in trace.spans] == ["claim"]
        with recording(Trace()) as trace:
            await claim(pool, Spec(env={"A": "b"}))
        assert [one.name for one in trace.spans] == ["claim", "made"]

    on_pool(body, policy="none", source=Telling(source()))


def test_identical_misses_build_once() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        begun_s = now_s()
        handles = await asyncio.gather(*(claim(pool, spec()) for _ in range(8)))
        whole_s = now_s() - begun_s
        assert whole_s < 1.5 * (CLONE_S + INSTALL_S)
        assert len({handle.id for handle in handles}) == 8
        assert [await read(handle, "deps") for handle in handles] == ["installed"] * 8
        assert pool.figures().misses == 8
        check_invariants(pool)

    ran: list[str] = []
    fake = FakeSubstrate(create_s=1.0)

    async def counted(proc: object, argv: object) -> int:
        ran.append("once")
        return 0

    fake.install("count-me", counted)  # pyright: ignore
    on_pool(body, policy="none")

    async def once(pool: Pool, _: FakeSubstrate) -> None:
        wanted = Spec(steps=(Step("counts", (Shell("count-me; sleep 3"),)),))
        await asyncio.gather(*(claim(pool, wanted) for _ in range(8)))
        assert ran == ["once"]

    on_pool(once, policy="none", source=fake)


def test_what_is_left_to_do_to_idle_ones_is_done_once_for_identical_claims() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec(), 4, stage=Stage.REPO)
        begun_s = now_s()
        handles = await asyncio.gather(*(claim(pool, spec()) for _ in range(4)))
        assert now_s() - begun_s < INSTALL_S + CLONE_S
        assert [await read(handle, "deps") for handle in handles] == ["installed"] * 4
        figures = pool.figures()
        assert (figures.hits["repo"], figures.misses, figures.templates) == (1, 3, 2)

    on_pool(body, policy="none")


def test_a_dead_one_is_thrown_away_and_the_next_is_tried() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        newest = idle_of(pool)[-1]
        await newest.close()
        handle = await claim(pool, spec())
        assert handle.id != newest.id
        assert (pool.figures().dead, pool.figures().hits["deps"]) == (1, 1)

    on_pool(body, policy="none")


def test_a_hanging_one_costs_its_bound_and_not_the_deadline() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        newest = idle_of(pool)[-1]
        await newest.pause()
        begun_s = now_s()
        handle = await claim(pool, spec(), deadline_s=30.0)
        assert handle.id != newest.id
        assert 1.0 < now_s() - begun_s < 5.0

    on_pool(body, policy="none")


def test_a_step_that_fails_in_an_adopted_one_is_tried_once_more_from_the_beginning() -> None:
    fails_here = Step("deps", (Shell("sleep 1; test ! -e spoiled && echo fine > deps"),), Stage.DEPS, share=False)
    wanted = Spec(steps=(clone("one"), fails_here))

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(wanted, stage=Stage.REPO)
        (idle,) = idle_of(pool)
        await idle.run(Shell("touch spoiled"))
        begun_s = now_s()
        with recording(Trace()) as trace:
            handle = await claim(pool, wanted)
        assert [one.kind for one in trace.spans if one.name == "claim"] == ["repo", "miss"]
        assert pool.figures().claim_s == (now_s() - begun_s,)
        assert handle.id != idle.id
        assert await read(handle, "deps") == "fine"
        assert (await pool.attach(handle.id)) is handle

    on_pool(body, policy="none", reuse="never")


def test_a_switch_that_failed_is_as_dear_as_what_followed() -> None:
    def commit(name: str) -> Spec:
        switch = (Shell(f"sleep {SWITCH_S}; false"),)
        return Spec(steps=(msgspec.structs.replace(clone(name), switch=switch, share=False),))

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(commit("one"), 5)
        first_s = await took_s(pool, commit("two"))
        assert first_s > SWITCH_S + CLONE_S
        for number in range(4):
            await took_s(pool, commit(f"more-{number}"))
        assert await took_s(pool, commit("three")) < first_s - SWITCH_S / 2
        assert pool.figures().idle["repo"] > 0

    on_pool(body, policy="none", reuse="never")


def test_a_step_that_fails_is_a_create_error_for_all_who_wait_and_others_are_unharmed() -> None:
    broken = Spec(steps=(Step("breaks", (Shell("sleep 3; echo went-wrong; false"),)),))

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        outcomes = await asyncio.gather(*(claim(pool, broken) for _ in range(3)), claim(pool, spec()), return_exceptions=True)
        for error in outcomes[:3]:
            assert isinstance(error, CreateError)
            assert "breaks" in str(error)
            assert "went-wrong" in str(error)
        assert not isinstance(outcomes[3], BaseException)
        assert pool.figures().failed == 3

    on_pool(body, policy="none")


def test_the_same_request_is_one_sandbox_also_while_it_is_made() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        def asked(request: str) -> "asyncio.Task[object]":
            made = pool.create(spec(), deadline_s=100, lease_s=60, labels={}, request_id=request)
            return asyncio.ensure_future(made)

        first, second, other = asked("a"), asked("a"), asked("b")
        assert await first is await second
        assert await other is not await first
        cancelled, waiting = asked("c"), asked("c")
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await waiting is await asked("c")
        assert pool.figures().count <= 4

    on_pool(body, policy="none")


def test_a_closed_claim_is_lost_to_its_claimer_though_the_sandbox_lives_on() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        handle = await claim(pool, spec())
        name = handle.id
        await handle.close()
        await asyncio.sleep(1)
        assert [idle.id for idle in idle_of(pool)] == [name]
        for verb in (handle.run(Shell("true")), handle.ready(), handle.alive(), handle.renew(5)):
            with pytest.raises(SandboxLost):
                await verb
        with pytest.raises(SandboxLost, match="idle in the pool"):
            await pool.attach(name)

    on_pool(body, policy="none", reuse="reset")


def test_idle_sandboxes_are_in_no_list_but_by_the_pools_own_label() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        mine = await claim(pool, spec(), run="mine")
        assert [one.id for one in await pool.list({})] == [mine.id]
        assert [one.id for one in await pool.list({"run": "mine"})] == [mine.id]
        assert await pool.list({"run": "other"}) == ()
        everything = await fake.list({})
        assert len(everything) == 2
        assert all("excise-pool" in one.labels for one in everything if one.id != mine.id)

    on_pool(body, policy="none")


def test_fork_and_reset_work_through_the_pool_and_count() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        async with Sandbox(pool, spec()) as box:
            await box.write("mine", b"kept")
            start = await box.snapshot()
            assert start.address == pool.address
            async with box.fork(3) as group:
                assert pool.figures().count >= 4
                assert [await child.read("mine") for child in group] == [b"kept"] * 3
            await box.write("mine", b"lost")
            await box.reset(start)
            assert await box.read("mine") == b"kept"
            assert start.id in {one.id for one in await pool.snapshots()}
            await pool.discard(start)

    on_pool(body, policy="none")


def test_a_spec_the_source_cannot_honour_is_refused_on_a_warm_pool_too() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(Spec())
        with pytest.raises(SpecError, match="devices"):
            await claim(pool, Spec(devices=("/dev/null",)))
        assert pool.figures().idle["image"] == 1  # which it did not cost its life

    on_pool(body, policy="none")


def test_a_claim_with_no_time_is_too_late_though_one_is_idle() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(Spec())
        with pytest.raises(CreateError):
            await pool.create(Spec(), deadline_s=0.0, lease_s=60, labels={}, request_id=uuid.uuid4().hex)
        assert pool.figures().idle["image"] == 1

    on_pool(body, policy="none")


def test_what_is_not_shared_is_run_in_each() -> None:
    alone = Step("deps", INSTALL.actions, Stage.DEPS, share=False)
    wanted = Spec(steps=(clone("one"), alone))

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await asyncio.gather(*(claim(pool, wanted) for _ in range(2)))
        assert pool.figures().templates == 0

    on_pool(body, policy="none")


def test_a_request_of_another_owner_is_not_answered_with_mine() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.create(spec(), deadline_s=60, lease_s=60, labels={"owner": "me"}, request_id="one")
        with pytest.raises(CreateError, match="another owner's"):
            await pool.create(spec(), deadline_s=60, lease_s=60, labels={"owner": "they"}, request_id="one")

    on_pool(body, policy="none")
