"""A pool under anything in any order: the caps hold at every moment, a claim is alive, clean and its owner's, nothing leaks.

EXCISE_EXAMPLES=1000 looks further than the suite does.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from excise.action import Shell, Write
from excise.errors import CapacityError, CreateError, ExciseError
from excise.spec import Limits, Secret, Spec, Stage, Step
from excise.substrate import Snapshot
from excise.substrates.fake import virtual_time
from excise.substrates.pool import Pool
from excise.substrates.pool.handle import PoolHandle
from excise.substrates.pool.making import UNDO_S
from excise.substrates.pool.refill import MOST_FAILURES
from watched_source import IN_A_ROLLOUT, CheckedLoop, WatchedHandle, WatchedSource, contents

OWNERS = ("", "alice", "bob")
FAULTY = ("create", "ready", "alive", "adopt", "renew", "snapshot", "reset", "diff", "close", "discard")
LONG_S = 5000.0
"""No claim that can succeed takes so long here."""


def clone(commit: str) -> Step:
    return Step(
        "repo",
        (Shell(f"ran {commit}; sleep 5; echo {commit} > commit"),),
        Stage.REPO,
        of="repository",
        switch=(Shell(f"sleep 2; echo {commit} > commit"),),
    )


def install(lock: str | None, *, share: bool = True) -> Step:
    return Step("deps", (Shell(f"ran deps-{lock}; sleep 30; echo {lock} > deps"),), Stage.DEPS, share=share, lock=lock)


FETCH = Step("fetch", (Shell('ran fetch; sleep 3; printf "$TOKEN" > fetched'),), Stage.REPO)
UPON = Step("built", (Shell("ran built; sleep 4; cat commit > built"),), Stage.DEPS)
"""It depends on the commit below it, and has no lock: no sibling's will do."""

SPECS = {
    "image": Spec(),
    "other image": Spec(env={"A": "b"}),
    "one": Spec(steps=(clone("one"), install("x"))),
    "two": Spec(steps=(clone("two"), install("x"))),
    "other lock": Spec(steps=(clone("one"), install("y"))),
    "upon one": Spec(steps=(clone("one"), UPON)),
    "upon two": Spec(steps=(clone("two"), UPON)),
    "limited": Spec(steps=(clone("one"), install("x")), limits=Limits(pids=50, disk_bytes=1 << 24)),
    "booted": Spec(steps=(clone("two"),), boot=(Shell("sleep 1000000"),), ready=(Shell("test -e commit"),)),
    "alone": Spec(steps=(clone("one"), install("z", share=False))),
    "large": Spec(steps=(Step("large", (Shell("ran large"), Write("large", bytes(3 << 19)))),)),
    "failing": Spec(steps=(clone("one"), Step("fails", (Shell("ran fails; sleep 1; echo broke; false"),)))),
}
TOKENS = {owner: Spec(steps=(FETCH,), secrets={"TOKEN": Secret(f"token of {owner}")}) for owner in OWNERS}
SHOWN = {owner: Spec(steps=(clone("one"),), secrets={"KEY": Secret(f"key of {owner}")}) for owner in OWNERS}
NAMES = (*SPECS, "fetched", "shown")
OFTEN = (*NAMES, "one", "one", "two", "two", "image", "fetched")
"""Where specs are drawn from: what is asked for again meets what was left."""


def spec_of(name: str, owner: str) -> Spec:
    return {"fetched": TOKENS[owner], "shown": SHOWN[owner]}.get(name) or SPECS[name]


def starts() -> dict[tuple[str, str], dict[str, tuple[str, int, bytes]]]:
    """What each spec's sandbox holds when the source alone makes it."""

    async def look() -> dict[tuple[str, str], dict[str, tuple[str, int, bytes]]]:
        found = {}
        for name in NAMES:
            for owner in OWNERS:
                source = WatchedSource()
                spec = spec_of(name, owner)
                made = await source.create(spec, deadline_s=60, lease_s=60, labels={}, request_id="")
                if name != "failing":
                    await made.ready()
                    found[name, owner] = contents(made.inner.machine.tree)
                await made.close()
        return found

    return virtual_time.run(look())


class Rollout:
    """One claim, as whoever has it knows it."""

    def __init__(self, handle: PoolHandle, sandbox: WatchedHandle, name: str, owner: str) -> None:
        self.handle, self.sandbox, self.name, self.owner = handle, sandbox, name, owner
        self.killed = False


class AnyOrder(RuleBasedStateMachine):
    """A pool over a source with faults, on virtual time."""

    starts: dict[tuple[str, str], dict[str, tuple[str, int, bytes]]] = {}
    _source: WatchedSource
    _pool: Pool

    def __init__(self) -> None:
        super().__init__()
        self._loop = CheckedLoop()
        self._runner = asyncio.Runner(loop_factory=lambda: self._loop)
        self._rollouts: list[Rollout] = []
        self._pending: list[asyncio.Task[None]] = []
        self._leaving: list[asyncio.Task[None]] = []
        self._snapshots: list[Snapshot] = []
        self._wrong: list[str] = []
        self._failing_claims = self._failing_expects = 0
        self._closed = False

    @initialize(
        count=st.sampled_from([1, 2, 3, 6]),
        memory_mib=st.sampled_from([None, 3, 4, 8]),
        policy=st.sampled_from(["demand", "fixed", "schedule", "none"]),
        reuse=st.sampled_from(["auto", "reset", "reset", "never"]),
        match=st.sampled_from(["closest", "closest", "closest", "exact", "none"]),
        parallel=st.integers(1, 3),
        idle_s=st.sampled_from([20.0, 600.0]),
        slow=st.booleans(),
    )
    def open(self, *, memory_mib: int | None, slow: bool, **options: Any) -> None:
        async def make() -> None:
            latencies = {"create_s": 1.0, "ready_s": 0.1, "action_s": 0.01, "close_s": 0.5} if slow else {}
            self._source = WatchedSource(**latencies)
            memory = None if memory_mib is None else memory_mib << 20
            self._pool = Pool(self._source, memory=memory, pressure=False, **options)  # type: ignore[arg-type]

        self._options, self._memory_bytes = options, None if memory_mib is None else memory_mib << 20
        self._run(make())
        self._loop.check = self._look

    def _run(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            IN_A_ROLLOUT.set(True)
            return await work

        return self._runner.run(wait())

    def _now_s(self) -> float:
        return self._loop.time()

    # ---- what holds at every moment

    def _look(self) -> None:
        places, source, cap = self._pool._stock.places, self._source, self._options["count"]
        idle = self._idle()
        claimed = set(self._pool._claimed)
        for is_so, what in (
            (source.count <= places.count, "sandboxes live that have no place"),
            (places.count <= cap and source.count <= cap, "more sandboxes than the cap"),
            (len(set(idle)) == len(idle) and not claimed.intersection(idle), "a sandbox is idle twice, or idle and claimed"),
            (self._memory_bytes is None or places.memory_bytes <= self._memory_bytes, "more memory counted than the cap"),
            (self._memory_bytes is None or source.memory_bytes() <= self._memory_bytes, "more memory than the cap"),
        ):
            if not is_so and what not in self._wrong:
                self._wrong.append(what)

    def _idle(self) -> list[str]:
        payloads = [entry.payload for entry in self._pool._stock.shelf if not entry.template]
        return [held.handle.id for held in payloads if held.handle is not None]

    # ---- claims

    async def _claim(self, name: str, owner: str, wait_s: float) -> None:
        """As a Sandbox does it; what comes must be right."""
        ends_s = self._now_s() + wait_s
        self._failing_claims += name == "failing"
        labels = {"rollout": name, **({"owner": owner} if owner else {})}
        handle = await self._pool.create(
            spec_of(name, owner), deadline_s=wait_s, lease_s=9000.0, labels=labels, request_id=uuid.uuid4().hex
        )
        try:
            async with asyncio.timeout_at(max(ends_s, self._now_s())):
                await handle.ready()
            self._verify(handle, name, owner)
        except BaseException:
            await self._leave(handle)
            raise

    async def _leave(self, handle: PoolHandle) -> None:
        """Close it; where the source hangs, that is waited for later."""
        task = asyncio.ensure_future(self._closing(handle))
        self._leaving.append(task)
        try:
            await asyncio.wait({task}, timeout=200)
        except asyncio.CancelledError:
            return  # it goes on
        if not self._source.faults and not task.done():
            self._wrong.append("a close hangs though the source does not")

    async def _closing(self, handle: PoolHandle) -> None:
        try:
            await handle.close()
        except ExciseError as error:
            if str(error) != "close failed":  # which the source was told to
                self._wrong.append(repr(error))

    def _verify(self, handle: PoolHandle, name: str, owner: str) -> None:
        """Synchronous: nothing has happened since it was ready."""
        spec, sandbox = spec_of(name, owner), self._source.living[handle.id]
        machine, life = sandbox.inner.machine, sandbox.inner._life
        assert machine.gone is None, "a dead sandbox was handed out"
        assert not machine.paused
        assert contents(machine.tree) == self.starts[name, owner], "it does not hold what its spec says"
        running = [proc.argv for proc in machine.processes.values()]
        assert [argv for argv in running if "sleep 1000000" not in " ".join(argv)] == [], "something else runs in it"
        assert bool(running) == bool(spec.boot)
        assert not life.sessions
        assert not life._carried, "it remembers somebody's sessions"
        assert {name: one.reveal() for name, one in life.spec.secrets.items()} == {
            name: one.reveal() for name, one in spec.secrets.items()
        }
        assert (life.spec.limits, machine.network) == (spec.limits, "none")
        assert all(one.handle.id != handle.id for one in self._rollouts), "it is claimed twice"
        assert sandbox.users <= {owner}, f"{sandbox.users} had it before {owner!r}"
        assert all(value.endswith(f" of {owner}") for value in sandbox.secrets), "its steps saw another owner's secret"
        sandbox.users.add(owner)
        if spec.secrets:
            sandbox.secrets |= {one.reveal() for one in spec.secrets.values()}
        self._rollouts.append(Rollout(handle, sandbox, name, owner))

    def _ended(self, task: "asyncio.Task[None]", name: str, *, must_succeed: bool, cancelled: bool = False) -> None:
        assert task.done()
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            assert cancelled
        elif error is None:
            assert name != "failing"
        elif name == "failing" and isinstance(error, CreateError) and not self._source.faults:
            pass
        else:
            assert isinstance(error, ExciseError | TimeoutError), repr(error)
            assert not must_succeed, f"{error!r} {self._pool.figures()}"

    def _has_room(self) -> bool:
        busy = len(self._pool._claimed) + len(self._pending) + len([one for one in self._leaving if not one.done()])
        return not self._source.faults and self._memory_bytes is None and busy < self._options["count"] and not self._closed

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS), wait_s=st.sampled_from([0.5, 20.0, LONG_S]))
    def claim(self, name: str, owner: str, wait_s: float) -> None:
        must_succeed = self._has_room() and wait_s == LONG_S and name != "failing"

        async def wait() -> None:
            begun_s = self._now_s()
            task = asyncio.ensure_future(self._claim(name, owner, wait_s))
            await asyncio.wait({task}, timeout=wait_s + UNDO_S + 0.2)
            took_s = self._now_s() - begun_s
            if not task.done():  # it waits for its close alone
                assert self._source.faults, f"a claim of {wait_s} s has no answer after {took_s} s"
                self._pending.append(task)
                return
            self._ended(task, name, must_succeed=must_succeed)

        self._run(wait())

    @rule(
        name=st.sampled_from(["one", "two", "limited", "fetched", "large"]), owner=st.sampled_from(OWNERS), n=st.integers(2, 4)
    )
    def claim_together(self, name: str, owner: str, n: int) -> None:
        """Identical misses build once: no shared step is run twice for them."""
        roomy = self._has_room() and self._options["count"] - len(self._pool._claimed) - len(self._pending) >= n + 1
        before = dict(self._source.ran)

        async def wait() -> None:
            tasks = [asyncio.ensure_future(self._claim(name, owner, LONG_S)) for _ in range(n)]
            await asyncio.wait(tasks, timeout=LONG_S + UNDO_S + 0.2)
            for task in tasks:
                if task.done():
                    self._ended(task, name, must_succeed=roomy)
                else:
                    assert self._source.faults
                    self._pending.append(task)

        self._run(wait())
        filling = self._pool._refill.filling or self._options["policy"] != "none" or self._pool._stock.coming
        if roomy and not filling and self._options["match"] != "none":
            for step, times in self._source.ran.items():
                assert times - before.get(step, 0) <= 1, f"{step} was run {times - before.get(step, 0)} times for {n} alike"

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS))
    def begin_a_claim(self, name: str, owner: str) -> None:
        async def begin() -> None:
            self._pending.append(asyncio.ensure_future(self._claim(name, owner, 60.0)))
            self._pending[-1].set_name(name)
            await asyncio.sleep(0)

        self._run(begin())

    @rule(
        name=st.sampled_from(OFTEN),
        owner=st.sampled_from(OWNERS),
        steps=st.integers(0, 40),
        after_s=st.sampled_from([0.0, 0.0, 1.05, 6.0, 20.0]),
        again=st.booleans(),
    )
    def cancel_a_claim(self, name: str, owner: str, steps: int, after_s: float, *, again: bool) -> None:
        """`again`: somebody comes for the same at that moment, and is not harmed."""
        room = self._has_room()

        async def cancel() -> None:
            task = asyncio.ensure_future(self._claim(name, owner, LONG_S))
            if after_s:
                await asyncio.sleep(after_s)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            other = asyncio.ensure_future(self._claim(name, owner, LONG_S)) if again else None
            await asyncio.wait({task}, timeout=300)
            if task.done():
                self._ended(task, name, must_succeed=False, cancelled=True)
            else:
                assert self._source.faults, "a cancelled claim goes on"
                self._pending.append(task)
            if other is not None:
                await asyncio.wait({other}, timeout=LONG_S + UNDO_S + 0.2)
                if other.done():
                    fits = room and self._options["count"] > len(self._pool._claimed) + 1
                    self._ended(other, name, must_succeed=fits and name != "failing")
                else:
                    assert self._source.faults
                    self._pending.append(other)

        self._run(cancel())

    @precondition(lambda self: self._pending)
    @rule(data=st.data())
    def cancel_a_pending_one(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self._pending))

        async def cancel() -> None:
            task.cancel()
            await asyncio.wait({task}, timeout=1)

        self._run(cancel())

    # ---- rollouts

    def _some(self, data: st.DataObject) -> Rollout:
        return self._rollouts[data.draw(st.integers(0, len(self._rollouts) - 1))]

    def _attempt(self, rollout: Rollout, work: Coroutine[Any, Any, Any]) -> Any:
        """Of a sandbox that lives it must succeed."""

        async def wait() -> Any:
            try:
                async with asyncio.timeout(100):
                    return await work
            except (ExciseError, TimeoutError) as error:
                if not (rollout.killed or self._source.faults):
                    self._wrong.append(repr(error))
                return None

        return self._run(wait())

    @precondition(lambda self: self._rollouts)
    @rule(data=st.data())
    def dirty(self, data: st.DataObject) -> None:
        """Files, a process, a session, /tmp; and what the steps made is spoilt."""
        rollout = self._some(data)
        self._attempt(rollout, self._use(rollout))

    async def _use(self, rollout: Rollout) -> None:
        await rollout.handle.run(Write("marker", b"mine"))
        await rollout.handle.run(Shell("echo x > /tmp/marker; echo spoilt > commit; rm -f deps; sleep 1000 & true"))
        await rollout.handle.run(Shell("cd /tmp; export MARKER=1", session="main"))

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS), times=st.integers(1, 2))
    def use_and_return(self, name: str, owner: str, times: int) -> None:
        """A whole rollout, and at once another that may get the same sandbox."""
        for _ in range(times):
            before = len(self._rollouts)
            self.claim(name, owner, LONG_S)
            if len(self._rollouts) == before:
                return
            rollout = self._rollouts.pop()
            self._attempt(rollout, self._use(rollout))
            self._run(self._leave(rollout.handle))
            self._run(asyncio.sleep(2))

    @precondition(lambda self: self._rollouts)
    @rule(data=st.data(), steps=st.one_of(st.none(), st.integers(1, 12)))
    def close(self, data: st.DataObject, steps: int | None) -> None:
        """`steps`: who closes is cancelled after so many turns of the loop; it is closed all the same."""
        rollout = self._some(data)
        self._rollouts.remove(rollout)

        async def end() -> None:
            task = asyncio.ensure_future(self._leave(rollout.handle))
            if steps is not None:
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait({task})
            if not self._source.faults and rollout.sandbox.id in self._source.living and task.cancelled() is False:
                assert len(rollout.sandbox.inner.machine.processes) == 0 or steps is not None, "its processes outlive close"

        self._run(end())

    @precondition(lambda self: self._rollouts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Another of what it is now; it counts, and is closed after use."""
        rollout = self._some(data)

        async def other() -> None:
            snapshot = await rollout.handle.snapshot()
            try:
                child = await self._pool.create(
                    snapshot, deadline_s=5, lease_s=60, labels={"owner": rollout.owner}, request_id=uuid.uuid4().hex
                )
            except CapacityError:
                assert len(self._pool._claimed) > 0
            else:
                try:
                    await child.ready()
                    twin = self._source.living[child.id].inner.machine.tree
                    with_tmp = {path for path in contents(twin) if path.startswith("/tmp/")}
                    assert not with_tmp
                finally:
                    await self._leave(child)
            finally:
                await self._pool.discard(snapshot)

        self._attempt(rollout, other())

    @precondition(lambda self: self._rollouts)
    @rule(data=st.data())
    def snapshot_and_reset(self, data: st.DataObject) -> None:
        rollout = self._some(data)

        async def back() -> None:
            snapshot = await rollout.handle.snapshot()
            try:
                await rollout.handle.run(Write("after", b"gone"))
                await rollout.handle.reset(snapshot)
                assert "/workspace/after" not in contents(rollout.sandbox.inner.machine.tree)
            finally:
                await self._pool.discard(snapshot)

        self._attempt(rollout, back())

    # ---- what the world does

    @precondition(lambda self: self._rollouts)
    @rule(data=st.data())
    def kill_a_claimed_one(self, data: st.DataObject) -> None:
        rollout = self._some(data)
        rollout.killed = True
        self._run(self._source.kill(rollout.sandbox.id))
        assert self._attempt(rollout, rollout.handle.run(Shell("true"))) is None, "a dead one answers"

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS), how=st.sampled_from(["killed", "stands still"]))
    def claim_what_is_dead(self, name: str, owner: str, how: str) -> None:
        self.fill(name, owner, Stage.DEPS)
        for one in self._idle():
            self._run(self._source.kill(one) if how == "killed" else self._source.stop(one))
        self.claim(name, owner, LONG_S)

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES), owner=st.sampled_from(OWNERS))
    def claim_what_is_near(self, name: str, other: str, owner: str) -> None:
        """Whatever is idle, and whatever leads from there."""
        self.fill(name, owner, Stage.DEPS)
        self.claim(other, owner, LONG_S)

    @rule(
        verb=st.sampled_from(FAULTY),
        fault=st.sampled_from(["hangs", "fails"]),
        name=st.sampled_from(OFTEN),
        owner=st.sampled_from(OWNERS),
        stays=st.booleans(),
    )
    def break_the_source(self, verb: str, fault: str, name: str, owner: str, *, stays: bool) -> None:
        """Somebody claims then, and what is idle cannot all be used."""
        self._source.break_(verb, fault)
        self.claim(name, owner, 20.0)
        if not stays:
            self._source.recover()

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS))
    def reset_lies(self, name: str, owner: str) -> None:
        """It leaves something behind: nobody may ever see that."""
        self._source.break_("reset", "lies")
        self.use_and_return(name, owner, 1)
        self._source.recover()
        self.claim(name, owner, LONG_S)

    @rule()
    def recover(self) -> None:
        self._source.recover()

    @rule(seconds=st.sampled_from([0.05, 1.0, 3.0, 35.0, 130.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS), group=st.integers(1, 3))
    def expect(self, name: str, owner: str, group: int) -> None:
        self._failing_expects += name == "failing"
        spec = msgspec.structs.replace(spec_of(name, owner), labels={"owner": owner} if owner else {})
        self._run(self._pool.expect([spec], group=group))

    @rule(name=st.sampled_from(OFTEN), owner=st.sampled_from(OWNERS), stage=st.sampled_from(list(Stage)))
    def fill(self, name: str, owner: str, stage: Stage) -> None:
        self._failing_claims += name == "failing"
        spec = msgspec.structs.replace(spec_of(name, owner), labels={"owner": owner} if owner else {})

        async def make() -> None:
            with suppress(ExciseError, TimeoutError):
                async with asyncio.timeout(100):
                    await self._pool.fill(spec, stage=stage)

        self._run(make())

    # ---- what holds between any two rules

    @invariant()
    def nothing_was_wrong(self) -> None:
        self._pending = [task for task in self._pending if not self._is_over(task)]
        for task in self._leaving:
            if task.done():
                task.result()
        self._leaving = [task for task in self._leaving if not task.done()]
        assert self._wrong == []

    def _is_over(self, task: "asyncio.Task[None]") -> bool:
        if task.done():
            self._ended(task, task.get_name(), must_succeed=False, cancelled=True)
        return task.done()

    @invariant()
    def what_the_pool_does_by_itself_is_in_no_rollouts_context(self) -> None:
        if hasattr(self, "_source"):
            assert self._source.seen_by_rollouts == []

    @invariant()
    def what_fails_is_not_tried_for_ever(self) -> None:
        """A claim tries with an idle one, and once more without; a refill a few times."""
        if hasattr(self, "_source"):
            most = 2 * self._failing_claims + MOST_FAILURES * (self._failing_expects + self._failing_claims)
            assert self._source.ran.get("fails", 0) <= most

    @rule()
    def all_is_accounted_for(self) -> None:
        self._source.recover()
        self._run(self._settle())

    async def _settle(self) -> None:
        await asyncio.wait({asyncio.ensure_future(asyncio.sleep(0)), *self._pending, *self._leaving})
        async with asyncio.timeout(LONG_S):
            await self._pool.settled()
        pool, stock = self._pool, self._pool._stock
        idle, claimed = self._idle(), list(pool._claimed)
        assert sorted(self._source.living) == sorted([*idle, *claimed])
        assert set(claimed) == {rollout.handle.id for rollout in self._rollouts}
        assert (stock.places.count, stock.places.waiting) == (len(idle) + len(claimed), 0)
        templates = [entry for entry in stock.shelf if entry.template]
        kept = {one.id for one in await self._source.snapshots()}
        assert kept == {entry.payload.snapshot.id for entry in templates if entry.payload.snapshot is not None}
        held = [entry.payload for entry in stock.shelf] + [handle.held for handle in pool._claimed.values()]
        assert stock.places.memory_bytes == sum(one.size_bytes for one in held)
        assert not len(stock.shelf) or pool._refill._timer is not None, "what is idle is neither renewed nor expires"
        files = [task.get_coro().cr_code.co_filename for task in asyncio.all_tasks()]  # pyright: ignore
        assert not [file for file in files if "excise/substrates/pool" in file]

    def teardown(self) -> None:
        if not hasattr(self, "_pool"):
            self._loop.close()
            return
        self._source.recover()

        async def end() -> None:
            self._closed = True
            for task in self._pending:
                task.cancel()
            await self._pool.close()
            await asyncio.wait({asyncio.ensure_future(asyncio.sleep(0)), *self._pending, *self._leaving}, timeout=300)
            assert all(self._is_over(task) for task in self._pending)
            assert self._source.closed
            assert self._source.count == 0
            assert await self._source.snapshots() == ()
            assert self._pool._stock.places.count == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

        try:
            self._run(end())
        finally:
            self._runner.close()


def test_a_pool_in_any_order() -> None:
    AnyOrder.starts = starts()
    examples = int(os.environ.get("EXCISE_EXAMPLES", "150"))
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True, database=None),
    )
