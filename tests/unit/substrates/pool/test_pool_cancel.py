"""Cancelled at every await: of a claim, a close, a fill, a fork no sandbox, snapshot, place or task is left."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from excise.action import Shell, Write
from excise.errors import CreateError, ExciseError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Secret, Spec, Stage, Step
from excise.substrates.fake import virtual_time
from excise.substrates.fake.virtual_time import VirtualLoop
from excise.substrates.pool import Pool
from pooled import INSTALL, clone, spec
from watched_source import CheckedLoop, WatchedSource

ALONE = Spec(steps=(clone("one"), Step("deps", INSTALL.actions, Stage.DEPS, share=False)))
"""What is left to do to an idle one is done for the claim itself, in its own `ready`."""
BROKEN = Spec(env={"A": "b"}, steps=(clone("one"), Step("deps", (Shell("test ! -e spoiled"),), Stage.DEPS, share=False)))
TOKEN = Spec(steps=(clone("one"),), secrets={"TOKEN": Secret("hush")}, boot=(Shell("sleep 1000"),))


class CancelledAt:
    """Awaits `work`, and is cancelled when that waits for the nth time, or at the very moment that this wait is over."""

    def __init__(self, work: Awaitable[None], at: int, *, as_it_ends: bool) -> None:
        self._work, self._at, self._as_it_ends = work, at, as_it_ends
        self.waits = 0

    def __await__(self) -> Any:
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            self.waits += 1
            now = self.waits == self._at
            if now and not self._as_it_ends:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            thrown = None
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - passed on to where it belongs
                thrown = error
            if now and self._as_it_ends and thrown is None:
                thrown = asyncio.CancelledError()


# ---- what is there when it begins, and what is done then


async def nothing(pool: Pool, source: WatchedSource) -> None: ...


async def whole(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(spec(), 2)


async def image(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(spec(), stage=Stage.IMAGE)


async def repository(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(ALONE, stage=Stage.REPO)


async def spoiled(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(BROKEN, stage=Stage.REPO)
    for idle in source.living.values():
        await idle.inner.run(Write("spoiled", b""))


async def template(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(spec())
    for entry in pool._stock.shelf:
        if not entry.template:
            pool._stock.remove(entry)
    await pool.settled()


async def template_of_the_repository(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(spec(), stage=Stage.REPO)
    for entry in pool._stock.shelf:
        if not entry.template:
            pool._stock.remove(entry)
    await pool.settled()


async def dead(pool: Pool, source: WatchedSource) -> None:
    await pool.fill(spec(), 2)
    for name in list(source.living):
        await source.kill(name)


async def full(pool: Pool, source: WatchedSource) -> None:
    """Every place is taken by what is idle and of no use: one must go."""
    await pool.fill(Spec(env={"A": "b"}), 4)


def rollout(wanted: Spec) -> Callable[[Pool], Coroutine[Any, Any, None]]:
    async def run(pool: Pool) -> None:
        async with Sandbox(pool, wanted, wait_s=1000) as box:
            await box.run("echo x > marker; sleep 1000 & true")

    return run


async def group(pool: Pool) -> None:
    async with Sandbox(pool, spec(), wait_s=1000) as box, box.fork(2) as pair:
        await asyncio.gather(*(one.run("true") for one in pair))


async def filled(pool: Pool) -> None:
    await pool.fill(spec(), 2)


async def together(pool: Pool) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(rollout(spec())(pool))


CASES = {
    "a miss": (nothing, rollout(spec()), {}),
    "a miss that each makes for itself": (nothing, rollout(ALONE), {}),
    "a miss without snapshots to reset to": (nothing, rollout(spec()), {"reuse": "never"}),
    "every claim a create": (nothing, rollout(spec()), {"match": "none"}),
    "the very state": (whole, rollout(spec()), {}),
    "a sibling": (whole, rollout(spec("two")), {}),
    "an image, and the rest for all": (image, rollout(spec()), {}),
    "a repository, and the rest for itself": (repository, rollout(ALONE), {}),
    "one that fails and another": (spoiled, rollout(BROKEN), {}),
    "a template": (template, rollout(spec()), {}),
    "a template that is not whole": (template_of_the_repository, rollout(spec()), {}),
    "dead ones": (dead, rollout(spec()), {}),
    "secrets and boot commands": (image, rollout(TOKEN), {}),
    "no place but an idle one's": (full, rollout(spec()), {}),
    "fork": (whole, group, {}),
    "discarded after use": (whole, rollout(spec()), {"reuse": "never"}),
}


@pytest.mark.parametrize("as_it_ends", [False, True], ids=["while it waits", "as its wait ends"])
@pytest.mark.parametrize("name", CASES)
def test_cancelled_at_every_await_nothing_is_left(name: str, *, as_it_ends: bool) -> None:
    prepare, work, options = CASES[name]
    moment, more = 0, True
    while more:
        moment += 1
        more = virtual_time.run(cancelled_at(moment, prepare, work, options, as_it_ends=as_it_ends))
    assert moment > 4, "it hardly waited"


async def cancelled_at(
    moment: int,
    prepare: Callable[[Pool, WatchedSource], Awaitable[None]],
    work: Callable[[Pool], Awaitable[None]],
    options: dict[str, Any],
    *,
    as_it_ends: bool,
) -> bool:
    """Whether there was such a moment. What is left is what is idle, and all of it goes with the pool."""
    source = WatchedSource(create_s=1.0, ready_s=0.1, action_s=0.01, close_s=0.5)
    pool = Pool(source, **{"count": 4, "policy": "none", "pressure": False, "reuse": "reset", **options})
    await prepare(pool, source)
    waits = CancelledAt(work(pool), moment, as_it_ends=as_it_ends)

    async def run() -> None:
        await waits

    task = asyncio.ensure_future(run())
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    await pool.settled()
    await accounted(pool, source)
    await usable(pool)
    await pool.close()
    assert (source.count, await source.snapshots(), pool.figures().count) == (0, (), 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return waits.waits >= moment


# ---- where several tasks work at once: at every turn of the loop


class CountingLoop(VirtualLoop):
    """Calls `then` after its nth turn."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.turns, self._at = 0, at
        self.then: Callable[[], object] | None = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.then is not None:
            self.turns += 1
            if self.turns == self._at:
                self.then()


def at_every_turn(work: Callable[[CountingLoop, Pool, WatchedSource], Awaitable[None]], **options: Any) -> None:
    """From the first turn to the one behind the end; nothing is left of any of them."""

    async def once(loop: CountingLoop) -> None:
        source = WatchedSource(create_s=1.0, ready_s=0.1, action_s=0.01, close_s=0.5)
        pool = Pool(source, **{"count": 4, "policy": "none", "pressure": False, "reuse": "reset", **options})
        await work(loop, pool, source)
        loop.then = None
        await pool.close()
        assert (source.count, await source.snapshots(), pool.figures().count) == (0, (), 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    at, is_over = 1, False
    while not is_over:
        loop = CountingLoop(at)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:
            runner.run(once(loop))
        at, is_over = at + 1, loop.turns < at
    assert at > 20


@pytest.mark.parametrize("flow", [filled, together])
def test_cancelled_at_every_turn_of_the_loop_nothing_is_left(flow: Callable[[Pool], Coroutine[Any, Any, None]]) -> None:
    async def work(loop: CountingLoop, pool: Pool, source: WatchedSource) -> None:
        task = asyncio.ensure_future(flow(pool))
        loop.then = task.cancel
        await asyncio.wait({task})
        loop.then = None
        if not task.cancelled():
            task.result()
        await pool.settled()
        await accounted(pool, source)

    at_every_turn(work)


def test_one_of_several_is_cancelled_at_every_turn_and_the_others_get_theirs() -> None:
    async def work(loop: CountingLoop, pool: Pool, source: WatchedSource) -> None:
        tasks = [asyncio.ensure_future(rollout(spec())(pool)) for _ in range(3)]
        loop.then = tasks[0].cancel
        await asyncio.wait(tasks)
        loop.then = None
        for task in tasks[1:]:
            task.result()
        await pool.settled()
        await accounted(pool, source)

    at_every_turn(work)


@pytest.mark.parametrize("reuse", ["reset", "never"])
def test_a_pool_closed_at_every_turn_of_refill_claims_and_reuse_leaves_nothing(reuse: str) -> None:
    """Whoever still claims is told so, or had it before."""

    async def work(loop: CountingLoop, pool: Pool, source: WatchedSource) -> None:
        closing: list[asyncio.Task[None]] = []
        await pool.expect([spec(), spec("two")], group=1)
        claims = [asyncio.ensure_future(rollout(wanted)(pool)) for wanted in (spec(), ALONE, spec())]
        loop.then = lambda: closing.append(loop.create_task(pool.close()))
        await asyncio.wait(claims)
        loop.then = None
        for task in claims:
            if (error := task.exception()) is not None:
                assert closing, repr(error)
                assert isinstance(error, ExciseError), repr(error)
        if closing:
            await closing[0]

    at_every_turn(work, policy="fixed", reuse=reuse)


async def accounted(pool: Pool, source: WatchedSource) -> None:
    shelf = list(pool._stock.shelf)
    idle = [entry.payload.handle.id for entry in shelf if entry.payload.handle is not None]
    kept = {entry.payload.snapshot.id for entry in shelf if entry.payload.snapshot is not None}
    assert sorted(source.living) == sorted(idle)
    assert {one.id for one in await source.snapshots()} == kept
    figures = pool.figures()
    assert (figures.count, figures.claimed, figures.waiting, figures.filling) == (len(idle), 0, 0, 0)
    assert figures.memory_bytes == sum(entry.payload.size_bytes for entry in shelf)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def usable(pool: Pool) -> None:
    """Nobody else is harmed: every place can still be had."""
    boxes = [Sandbox(pool, spec(), wait_s=1000) for _ in range(4)]
    await asyncio.gather(*(box.open() for box in boxes))
    assert [(await box.run("cat commit deps; ls")).stdout for box in boxes] == [b"one\ninstalled\ncommit\ndeps\n"] * 4
    await asyncio.gather(*(box.close() for box in boxes))


# ---- one by one: what was once wrong


def on_watched(body: Callable[[Pool, WatchedSource], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        source = WatchedSource(create_s=1.0, close_s=0.5)
        pool = Pool(source, **{"policy": "none", "pressure": False, **options})
        try:
            await body(pool, source)
            source.recover()
        finally:
            await pool.close()
        assert (source.count, await source.snapshots()) == (0, ())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual_time.run(run())


def test_who_comes_while_a_build_is_given_up_has_one_of_its_own() -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        first = asyncio.ensure_future(rollout(spec())(pool))
        await asyncio.sleep(10)
        first.cancel()
        await rollout(spec())(pool)
        assert first.cancelled()

    on_watched(body)


def test_a_step_that_fails_in_the_second_one_too_leaves_neither() -> None:
    always = Spec(steps=(clone("one"), Step("deps", (Shell("false"),), Stage.DEPS, share=False)))

    async def body(pool: Pool, source: WatchedSource) -> None:
        await pool.fill(always, stage=Stage.REPO)
        with pytest.raises(CreateError, match="deps"):
            await rollout(always)(pool)
        await pool.settled()
        assert (source.count, pool.figures().count) == (0, 0)

    on_watched(body)


def test_a_source_that_raises_what_nobody_expects_is_not_asked_for_ever() -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        source.break_("create", "odd")
        await pool.expect([spec()], group=1)
        await asyncio.sleep(3600)
        assert source.creates == 5
        (failing,) = pool.figures().failing
        assert failing.reason == "OSError: create broke as nobody expects"
        assert failing.next_s is None

    on_watched(body)


@pytest.mark.parametrize("policy", ["fixed", "demand"])
def test_what_expired_is_not_made_again_only_to_expire(policy: str) -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        for _ in range(4):
            await rollout(spec())(pool)
        await asyncio.sleep(20)
        before = source.creates
        await asyncio.sleep(500)
        assert (source.creates, source.count) == (before, 0)

    on_watched(body, policy=policy, idle_s=30.0)


def test_what_comes_back_while_the_pool_is_closed_is_closed_before_the_source() -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        await pool.fill(spec())
        handle = await pool.create(spec(), deadline_s=9, lease_s=60, labels={}, request_id=uuid.uuid4().hex)
        await handle.ready()
        source.break_("reset", "hangs")
        closing = asyncio.ensure_future(handle.close())
        await asyncio.sleep(1)
        ending = asyncio.ensure_future(pool.close())
        await asyncio.sleep(5)
        assert not source.closed
        source.recover()
        await ending
        assert closing.done()
        assert source.count == 0

    on_watched(body, reuse="reset")


def test_closing_a_pool_whose_source_does_not_close_ends_with_an_error_that_says_so() -> None:
    async def run() -> None:
        source = WatchedSource()
        pool = Pool(source, policy="none", reuse="never", pressure=False)
        await pool.create(Spec(), deadline_s=9, lease_s=60, labels={}, request_id="one")
        source.break_("close", "hangs")
        with pytest.raises(SubstrateError, match="did not end"):
            async with asyncio.timeout(100):
                await pool.close()
        assert source.closed
        source.recover()
        await asyncio.sleep(1)
        assert source.count == 0

    virtual_time.run(run())


def test_who_waits_for_a_place_of_a_pool_that_is_closed_is_told_and_the_source_makes_nothing_more() -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        async def ask(name: str) -> object:
            return await pool.create(Spec(), deadline_s=500, lease_s=60, labels={}, request_id=name)

        await ask("one")
        waiting = asyncio.ensure_future(ask("two"))
        await asyncio.sleep(1)
        await pool.close()
        with pytest.raises(CreateError, match="closed"):
            await waiting
        assert source.creates == 1

    on_watched(body, count=1)


@pytest.mark.parametrize("memory_bytes", [3 << 20, (4 << 20) - 1, 4 << 20, 5 << 20])
def test_a_sandbox_that_turns_out_larger_than_its_place_does_not_break_the_cap(memory_bytes: int) -> None:
    """Nor does it cost the claim: once more, in a place that is large enough."""
    large = Spec(steps=(Step("large", (Write("large", bytes(3 << 19)),)),))
    loop, most = CheckedLoop(), 0

    async def run() -> None:
        source = WatchedSource(create_s=1.0, close_s=0.5)
        pool = Pool(source, memory=memory_bytes, policy="none", pressure=False)

        def look() -> None:
            nonlocal most
            most = max(most, pool.figures().memory_bytes, source.memory_bytes())

        loop.check = look
        async with Sandbox(pool, Spec(env={"A": "b"}), wait_s=100), Sandbox(pool, large, wait_s=100) as box:
            assert len(await box.read("large")) == 3 << 19
        await pool.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    assert 2 << 20 < most <= memory_bytes


def test_one_of_the_very_state_that_comes_while_a_build_waits_for_its_place_does_not_stand_in_its_way() -> None:
    async def body(pool: Pool, source: WatchedSource) -> None:
        async with Sandbox(pool, Spec(env={"A": "b"})):
            filling = asyncio.ensure_future(pool.fill(spec()))
            await asyncio.sleep(1)
            async with Sandbox(pool, spec(), wait_s=200):  # long before what is idle expires
                await filling

    on_watched(body, count=2)
