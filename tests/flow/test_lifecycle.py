"""Sandboxes opened, used, saved, forked, cancelled and closed in any order: nothing is ever left of them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from excise.action import End
from excise.errors import CreateError, SandboxLost, SpecError
from excise.sandbox import Sandbox
from excise.substrate import Snapshot
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.virtual_time import VirtualLoop


def slow() -> FakeSubstrate:
    return FakeSubstrate(create_s=0.3, ready_s=0.2, action_s=0.1, guest_s=0.1, close_s=0.2)


async def nothing_is_left(substrate: FakeSubstrate) -> None:
    """No sandbox, no snapshot, no task."""
    assert await substrate.list({}) == ()
    assert substrate._snapshots == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- in any order


class Kept:
    """What we know of one Sandbox."""

    def __init__(self, box: Sandbox, start: bytes | None) -> None:
        self.box = box
        self.start = start
        self.content = start
        """Of the file f; None: there is no such file."""
        self.left_running = 0
        self.state: Literal["open", "lost", "closed"] = "open"

    def fresh(self) -> None:
        self.content, self.left_running, self.state = self.start, 0, "open"


class Saved:
    """What we know of one Snapshot."""

    def __init__(self, snapshot: Snapshot, content: bytes | None) -> None:
        self.snapshot = snapshot
        self.content = content
        self.discarded = False


class AnyOrder(RuleBasedStateMachine):
    """Every rule takes any sandbox, in whatever state it is."""

    boxes = Bundle("boxes")
    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._substrate = slow()
        self._kept: list[Kept] = []

    def _run(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await work

        return self._runner.run(wait())

    def _attempt(self, kept: Kept, verb: Callable[[Sandbox], Awaitable[Any]]) -> Any:
        """Do it if the sandbox is open; else see it refused, and return None."""
        if kept.state == "open":
            return self._run(verb(kept.box))

        async def refused() -> None:
            await verb(kept.box)

        with pytest.raises(RuntimeError if kept.state == "closed" else SandboxLost):
            self._run(refused())
        return None

    def _keep(self, box: Sandbox, start: bytes | None) -> Kept:
        self._kept.append(Kept(box, start))
        return self._kept[-1]

    # ---- opening and closing

    @rule(target=boxes)
    def open_a_fresh_one(self) -> Kept:
        box = Sandbox(self._substrate)
        self._run(box.open())
        return self._keep(box, None)

    @rule(target=boxes, saved=snapshots)
    def open_from_a_snapshot(self, saved: Saved) -> Kept:
        box = Sandbox(self._substrate, saved.snapshot)
        kept = self._keep(box, saved.content)
        if saved.discarded:
            with pytest.raises(SpecError, match="it was discarded"):
                self._run(box.open())
            kept.state = "closed"
        else:
            self._run(box.open())
        return kept

    @rule(kept=boxes)
    def open_again(self, kept: Kept) -> None:
        if kept.state == "closed":
            try:
                self._run(kept.box.open())
            except SpecError:
                return  # its snapshot was discarded
            kept.fresh()
        else:
            before = kept.box.id
            self._run(kept.box.open())
            assert kept.box.id == before

    @rule(kept=boxes, times=st.integers(1, 2))
    def close(self, kept: Kept, times: int) -> None:
        for _ in range(times):
            self._run(kept.box.close())
        kept.state = "closed"

    @rule(kept=boxes)
    def close_in_a_hurry(self, kept: Kept) -> None:
        """Cancelled while it is closed: it is closed all the same."""

        async def hurry() -> None:
            closing = asyncio.create_task(kept.box.close())
            await asyncio.sleep(0.05)
            closing.cancel()
            await asyncio.wait([closing])

        self._run(hurry())
        kept.state = "closed"

    @rule(kept=boxes)
    def somebody_else_ends_it(self, kept: Kept) -> None:
        async def end() -> None:
            await (await self._substrate.attach(kept.box.id)).close()

        if kept.state == "open":
            self._run(end())
            kept.state = "lost"

    # ---- using

    @rule(kept=boxes, data=st.binary(max_size=3))
    def write(self, kept: Kept, data: bytes) -> None:
        self._attempt(kept, lambda box: box.write("f", data))
        if kept.state == "open":
            kept.content = data

    @rule(kept=boxes)
    def read(self, kept: Kept) -> None:
        if kept.state == "open" and kept.content is None:
            with pytest.raises(FileNotFoundError):
                self._run(kept.box.read("f"))
        else:
            seen = self._attempt(kept, lambda box: box.read("f"))
            assert seen == (kept.content if kept.state == "open" else None)

    @rule(kept=boxes)
    def run_a_command(self, kept: Kept) -> None:
        seen = self._attempt(kept, lambda box: box.run("cat f"))
        if seen is not None:
            assert (seen.ok, seen.stdout) == (kept.content is not None, kept.content or b"")

    @rule(kept=boxes)
    def leave_something_running(self, kept: Kept) -> None:
        seen = self._attempt(kept, lambda box: box.run("sleep 1000000 &"))
        if seen is not None:
            assert seen.still_running
            kept.left_running += 1

    @rule(kept=boxes)
    def run_out_of_time(self, kept: Kept) -> None:
        seen = self._attempt(kept, lambda box: box.run("sleep 1000 & sleep 1000", timeout_s=2))
        assert seen is None or seen.end is End.TIMED_OUT

    @rule(kept=boxes, after_s=st.sampled_from([0.0, 0.05, 0.15, 1.0]))
    def cancel_a_command(self, kept: Kept, after_s: float) -> None:
        async def cancel() -> None:
            running = asyncio.create_task(kept.box.run("sleep 1000 & sleep 1000"))
            await asyncio.sleep(after_s)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled() == (kept.state == "open")
            if not running.cancelled():
                assert isinstance(running.exception(), RuntimeError | SandboxLost)

        self._run(cancel())

    # ---- states

    @rule(target=snapshots, kept=boxes)
    def snapshot(self, kept: Kept) -> Any:
        snapshot = self._attempt(kept, lambda box: box.snapshot())
        return multiple() if snapshot is None else Saved(snapshot, kept.content)

    @rule(kept=boxes, saved=snapshots)
    def reset(self, kept: Kept, saved: Saved) -> None:
        if kept.state == "open" and saved.discarded:
            with pytest.raises(SpecError, match="it was discarded"):
                self._run(kept.box.reset(saved.snapshot))
            return
        self._attempt(kept, lambda box: box.reset(saved.snapshot))
        if kept.state == "open":
            kept.content, kept.left_running = saved.content, 0

    @rule(saved=snapshots)
    def discard(self, saved: Saved) -> None:
        self._run(self._substrate.discard(saved.snapshot))
        saved.discarded = True

    @rule(kept=boxes, count=st.integers(1, 3))
    def fork(self, kept: Kept, count: int) -> None:
        async def group(box: Sandbox) -> None:
            async with box.fork(count) as siblings:
                assert len({box.id, *(one.id for one in siblings)}) == count + 1
                for number, one in enumerate(siblings):
                    assert (await one.run("cat f")).stdout == (kept.content or b"")
                    await one.write("f", str(number))
                assert [await one.read("f") for one in siblings] == [str(n).encode() for n in range(count)]

        self._attempt(kept, group)

    @rule(kept=boxes, after_s=st.sampled_from([0.0, 0.15, 0.35, 0.55, 5.0]))
    def cancel_a_fork(self, kept: Kept, after_s: float) -> None:
        async def hold() -> None:
            async with kept.box.fork(2):
                await asyncio.sleep(1000)

        async def cancel() -> None:
            holding = asyncio.create_task(hold())
            await asyncio.sleep(after_s)
            holding.cancel()
            await asyncio.wait([holding])

        if kept.state == "open":
            self._run(cancel())

    # ---- what always holds

    @invariant()
    def the_substrate_has_what_is_open_and_nothing_else(self) -> None:
        listed = {one.id for one in self._run(self._substrate.list({}))}
        assert listed == {kept.box.id for kept in self._kept if kept.state == "open"}

    @invariant()
    def nothing_runs_but_what_was_left_running(self) -> None:
        for kept in self._kept:
            if kept.state == "open":
                machine = self._run(self._substrate.attach(kept.box.id)).machine
                assert len(machine.processes) == kept.left_running

    def teardown(self) -> None:
        async def end() -> None:
            for kept in self._kept:
                await kept.box.close()
            self._substrate._snapshots.clear()
            await nothing_is_left(self._substrate)

        self._run(end())
        self._runner.close()


def test_in_any_order() -> None:
    run_state_machine_as_test(
        AnyOrder, settings=settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None)
    )


# ---- cancelled at any await


class CancelledAt:
    """A coroutine that is cancelled when it waits for the nth time, or at the very moment that this wait is over."""

    def __init__(self, work: Any, at: int, *, as_it_ends: bool) -> None:
        self._work = work
        self._at = at
        self._as_it_ends = as_it_ends
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value
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


async def only_open(substrate: FakeSubstrate) -> None:
    box = Sandbox(substrate)
    await box.open()
    await box.close()


async def rollout(substrate: FakeSubstrate) -> None:
    async with Sandbox(substrate) as box:
        await box.run(f"sleep 1000 & sleep {substrate.guest_s}")
        await box.run("cd /tmp", session="main")
        await box.write("f", b"x")
        process = await box.start("sleep 1000 & cat", stdin=b"in")
        await process.close_stdin()
        await process.wait()


async def group_of_three(substrate: FakeSubstrate) -> None:
    async with Sandbox(substrate) as box, box.fork(3) as siblings:
        await asyncio.gather(*(one.run(f"sleep {substrate.guest_s}") for one in siblings))


async def loop_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def twentieths_of_a_second(count: int) -> None:
    await asyncio.sleep(count / 20)


FLOWS = pytest.mark.parametrize("flow", [only_open, rollout, group_of_three])
Flow = Callable[[FakeSubstrate], Coroutine[Any, Any, None]]


async def left_nothing(task: "asyncio.Task[None]", substrate: FakeSubstrate) -> bool:
    """Whether the task was cancelled; either way it left nothing, and met no other error."""
    await asyncio.wait([task])
    await nothing_is_left(substrate)
    if not task.cancelled():
        await task
    return task.cancelled()


def every_moment(cancelled_at: Callable[[int], Coroutine[Any, Any, bool]]) -> None:
    """Cancel at the first moment, the second, and so on, until one lies behind the end."""
    moments = 0
    while virtual_time.run(cancelled_at(moments)):
        moments += 1
    assert moments > 4


@pytest.mark.parametrize("as_it_ends", [False, True], ids=["while it waits", "as its wait ends"])
@FLOWS
def test_cancelled_at_any_await_nothing_is_left(flow: Flow, *, as_it_ends: bool) -> None:
    async def cancelled_at(moment: int) -> bool:
        substrate = slow()

        async def run() -> None:
            await CancelledAt(flow(substrate), moment + 1, as_it_ends=as_it_ends)

        return await left_nothing(asyncio.create_task(run()), substrate)

    every_moment(cancelled_at)


@pytest.mark.parametrize(("passing", "make"), [(loop_turns, FakeSubstrate), (twentieths_of_a_second, slow)])
@FLOWS
def test_cancelled_at_any_time_nothing_is_left(
    flow: Flow, passing: Callable[[int], Coroutine[Any, Any, None]], make: Callable[[], FakeSubstrate]
) -> None:
    async def cancelled_at(moment: int) -> bool:
        substrate = make()
        task = asyncio.create_task(flow(substrate))
        await passing(moment)
        task.cancel()
        return await left_nothing(task, substrate)

    every_moment(cancelled_at)


# ---- groups


def test_if_one_sibling_cannot_be_made_none_is_left() -> None:
    seen: set[str] = set()

    async def main(seed: int) -> None:
        substrate = FakeSubstrate(create_s=1, close_s=1, jitter=1, seed=seed)
        async with Sandbox(substrate) as box:
            substrate.fail_create = 0.3
            made_before = substrate._made
            try:
                async with box.fork(4):
                    assert len(await substrate.list({})) == 5
                    seen.add("all were made")
            except CreateError:
                seen.add("some were made" if substrate._made > made_before else "none was made")
            assert [one.id for one in await substrate.list({})] == [box.id]
            assert substrate._snapshots == {}
            assert (await box.run("echo here")).stdout == b"here\n"
        await nothing_is_left(substrate)

    for seed in range(20):
        virtual_time.run(main(seed))
    assert seen == {"all were made", "some were made", "none was made"}


def test_a_group_is_closed_when_its_block_fails() -> None:
    async def main() -> None:
        substrate = slow()
        with pytest.raises(ValueError, match="mine"):
            async with Sandbox(substrate) as box, box.fork(3):
                raise ValueError("mine")
        await nothing_is_left(substrate)

    virtual_time.run(main())


def test_a_sandbox_may_be_closed_before_its_group() -> None:
    async def main() -> None:
        substrate = slow()
        box = Sandbox(substrate)
        await box.open()
        await box.write("f", b"x")
        async with box.fork(2) as siblings:
            await box.close()
            assert [await one.read("f") for one in siblings] == [b"x", b"x"]
        await nothing_is_left(substrate)

    virtual_time.run(main())


def test_a_fork_of_a_fork() -> None:
    async def main() -> None:
        substrate = slow()
        async with Sandbox(substrate) as box, box.fork(2) as siblings:
            await siblings[1].write("f", b"x")
            async with siblings[1].fork(2) as grandchildren:
                assert [await one.read("f") for one in grandchildren] == [b"x", b"x"]
        await nothing_is_left(substrate)

    virtual_time.run(main())


# ---- real processes


def test_sixteen_rollouts_at_once_on_this_machine() -> None:
    async def one(number: int) -> bytes:
        async with Sandbox("local") as box:
            await box.run(f"echo {number} > f")
            return await box.read("f")

    async def main() -> list[bytes]:
        return await asyncio.gather(*(one(number) for number in range(16)))

    assert asyncio.run(main()) == [f"{number}\n".encode() for number in range(16)]
