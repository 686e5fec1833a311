"""Claims on the virtual clock: timed from when they were to be made, the same for every mode, each with its own failure."""

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest

from excise.action import Shell
from excise.meter.booth import Booth
from excise.meter.demand import asked, asked_before
from excise.meter.pool_records import PoolCell, PoolPlan
from excise.meter.pool_session import Slot, numbers, run_session
from excise.spec import Spec, Stage, Step
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.workload import Expect, Turn

TIMES = {"create_s": 0.2, "ready_s": 0.05, "action_s": 0.0, "guest_s": 0.0, "close_s": 0.06}
STEP_S = 0.5


class Counted(NamedTuple):
    """A task whose two steps each take half a second."""

    number: int

    @property
    def name(self):
        return f"task {self.number}"

    def spec(self, image):
        steps = (
            Step("tools", (Shell("echo tools > tools"),), Stage.IMAGE),
            Step("repo", (Shell(f"sleep {STEP_S}; echo {self.number} > repo"),), Stage.REPO),
            Step("deps", (Shell(f"sleep {STEP_S}; echo {self.number} > deps"),), Stage.DEPS),
        )
        return Spec(image=image, steps=steps)

    def turns(self, nonce):
        wrong = "wrong" if self.number == 7 else str(self.number)
        return (Turn(Shell(f"cat deps; echo {nonce}"), Expect(stdout=f"{wrong}\n{nonce}\n".encode())),)


class Ten:
    name = "ten"
    tasks = tuple(map(Counted, range(10)))
    with_sibling = (3,)

    def sibling(self, number):
        return self.tasks[number - 1]


def script(spec: Spec) -> str:
    action = spec.steps[1].actions[0]
    assert isinstance(action, Shell)
    return action.script


class Kept(FakeSubstrate):
    """What was asked of it, and whether it was closed."""

    def __init__(self):
        super().__init__(**TIMES)  # pyright: ignore[reportArgumentType]
        self.asked: list[Spec] = []
        self.closed = False
        self.settles = 0
        self.filled: list[tuple[Spec, int, Stage]] = []

    async def create(self, start, **terms):
        self.asked.append(start)
        return await super().create(start, **terms)

    async def fill(self, spec, count=1, *, stage=Stage.DEPS):
        self.filled.append((spec, count, stage))

    async def settled(self):
        self.settles += 1

    def figures(self):
        return {"hits": {"deps": len(self.asked)}, "held_back": "no", "misses": 2}

    async def close(self):
        self.closed = True
        await super().close()


def session(cell, *, block=0, substrate=None):
    found = substrate or Kept()
    booth = Booth(connect=lambda _: found, mixed=Ten(), image="host")
    plan = PoolPlan(cells=(cell,), image="host", workload="ten", blocks=1)
    return found, virtually(run_session(booth, plan, "r", Slot(block, 0, cell)))


def cell(**factors):
    return PoolCell(source="fake", address="fake", **factors)


def test_a_claim_is_timed_from_its_intended_start_to_the_start_state():
    _, trial = session(cell(claims=3))
    assert [claim.failure for claim in trial.claims] == [None] * 3
    for claim in trial.claims:
        assert (claim.late_ns + claim.ready_ns) / 1e9 == pytest.approx(0.25 + 2 * STEP_S, abs=0.05)
        assert claim.total_ns > claim.ready_ns
    assert trial.failure is None
    assert trial.claims[0].task == 3  # the one that has a sibling


class OneByOne(Kept):
    """Makes one sandbox at a time."""

    def __init__(self):
        super().__init__()
        self._one = asyncio.Lock()

    async def create(self, start, **terms):
        async with self._one:
            return await super().create(start, **terms)


@pytest.mark.parametrize(("places", "together"), [(None, True), (4, True), (3, False)])
def test_in_a_burst_rollouts_begin_when_all_were_served_unless_some_wait_for_their_places(places, together):
    _, trial = session(cell(claims=4, places=places), substrate=OneByOne())
    first, last = (pick(claim.ready_ns for claim in trial.claims) for pick in (min, max))
    assert last > first + 4e8
    assert (min(claim.total_ns for claim in trial.claims) >= last) == together


def test_claims_arrive_whether_or_not_those_before_them_have_ended():
    _, trial = session(cell(claims=20, arrivals_per_s=50.0, zipf=0.0))
    ends = [claim.intended_ns + claim.late_ns + claim.total_ns for claim in trial.claims]
    assert trial.claims[-1].intended_ns < min(ends)
    assert [claim.intended_ns for claim in trial.claims] == sorted(claim.intended_ns for claim in trial.claims)
    assert trial.wall_ns >= max(ends) - 1_000_000


def test_steps_are_shared_only_where_the_cell_is_about_that():
    shares = {}
    for name, one in {
        "warm": cell(),
        "repo-warm": cell(state="repo-warm"),
        "deps-warm": cell(state="deps-warm"),
        "kept": cell(kept=True),
    }.items():
        found, _ = session(one)
        shares[name] = tuple(step.share for step in found.asked[-1].steps)
    assert shares == {
        "warm": (False, False, False),
        "repo-warm": (True, True, False),
        "deps-warm": (True, True, True),
        "kept": (True, True, True),
    }


def test_what_is_kept_is_made_before_the_wave():
    found, trial = session(cell(state="deps-warm", claims=2))
    assert [len(spec.steps) for spec in found.asked] == [0, 3, 3, 3]
    assert len(trial.claims) == 2


@pytest.mark.parametrize("depth", ["base", "image", "repo", "deps"])
def test_idle_sandboxes_are_made_ahead_up_to_their_depth(depth):
    found, _ = session(cell(state="pooled", mode="closest", depth=depth, idle=2, places=4))
    assert found.filled == [(found.asked[-1], 2, Stage(depth))]


def test_an_idle_sibling_is_another_task():
    found, _ = session(cell(state="pooled", mode="closest", depth="sibling", idle=1, places=4))
    ((idle, count, stage),) = found.filled
    assert (count, stage) == (1, Stage.DEPS)
    assert script(idle).endswith("echo 2 > repo")
    assert script(found.asked[-1]).endswith("echo 3 > repo")


def test_who_makes_nothing_ahead_is_no_pool():
    plain = FakeSubstrate(**TIMES)  # pyright: ignore[reportArgumentType]
    _, trial = session(cell(state="pooled", mode="closest", depth="deps", idle=1, places=4), substrate=plain)
    assert "idle sandboxes are for pools" in (trial.failure or "")


def test_a_task_is_one_spec_however_often_it_is_asked_for():
    found, _ = session(cell(zipf=1.2, claims=40))
    made = [spec for spec in found.asked if spec.steps]
    assert len({id(spec) for spec in made}) == len({script(spec) for spec in made}) <= 10 < len(made)


def test_a_wrong_answer_fails_its_claim_alone():
    _, trial = session(cell(claims=60, zipf=0.0))
    by_task = {claim.task: claim.failure for claim in trial.claims}
    assert 7 in by_task
    assert "not b'wrong" in (by_task[7] or "")
    assert [reason for task, reason in by_task.items() if task != 7 and reason] == []


def test_a_substrate_that_makes_nothing_costs_its_own_trial_and_is_closed():
    class Broken(Kept):
        async def create(self, start, **terms):
            raise OSError("no room")

    found, trial = session(cell(), substrate=Broken())
    assert "no room" in (trial.failure or "")
    assert trial.claims == ()
    assert found.closed


def test_who_does_things_by_itself_is_waited_for_before_the_wave_and_after_it():
    found, trial = session(cell(state="pooled", mode="closest", depth="deps", idle=1, places=2))
    assert found.settles == 2
    assert trial.figures == {"hits.deps": 1.0, "misses": 2.0}


def test_a_pool_begins_with_one_of_each_of_the_last_tasks_asked_for():
    found, trial = session(cell(zipf=0.8, claims=2, lead=5, state="pooled", mode="exact", places=5))
    assert [(count, stage) for _, count, stage in found.filled] == [(1, Stage.DEPS)] * 5
    assert len({script(spec) for spec, _, _ in found.filled}) == 5
    assert len(found.asked) == len(trial.claims) == 2


def test_who_has_more_room_has_what_others_have_and_more():
    few, many = (asked_before(cell(zipf=0.8, lead=lead), 200, 3, 1) for lead in (20, 100))
    assert many[:20] == few
    assert len(set(many)) == 100
    assert asked_before(cell(zipf=0.8, lead=20), 200, 3, 2) != few
    assert len(asked_before(cell(zipf=1.2, lead=300), 200, 3, 1)) == 200
    popular = [sum(task < 20 for task in asked_before(cell(zipf=z, lead=20), 200, 3, 1)) for z in (0.0, 1.2)]
    assert popular[0] < popular[1]


def test_every_mode_of_a_cell_meets_the_same_tasks_at_the_same_times():
    modes = [
        cell(claims=30, zipf=0.8, arrivals_per_s=9.0),
        cell(claims=30, zipf=0.8, arrivals_per_s=9.0, mode="exact", state="pooled", lead=3, places=3),
        cell(claims=30, zipf=0.8, arrivals_per_s=9.0, mode="closest", state="pooled", lead=9, places=30),
    ]
    seen = {tuple((claim.task, claim.intended_ns) for claim in session(one, block=4)[1].claims) for one in modes}
    assert len(seen) == 1
    other = session(modes[0], block=5)[1]
    assert tuple((claim.task, claim.intended_ns) for claim in other.claims) not in seen


def test_zipf_says_how_unevenly():
    def counted(exponent):
        return Counter(asked(cell(zipf=exponent, claims=20_000), 200, (), 1, 1))

    assert max(counted(0.0).values()) < 160
    assert counted(1.2).most_common(1)[0][0] == 0
    assert counted(0.8)[0] / 20_000 == pytest.approx(1 / sum((k + 1) ** -0.8 for k in range(200)), rel=0.1)


def test_figures_are_numbers_by_name():
    assert numbers({"a": 1, "b": {"c": 2.5, "d": "text"}, "e": [1], "f": True}) == {"a": 1.0, "b.c": 2.5}


def test_a_claim_that_is_cancelled_leaves_no_sandbox():
    found = Kept()
    booth = Booth(connect=lambda _: found, mixed=Ten(), image="host")
    one = cell(claims=4)
    plan = PoolPlan(cells=(one,), image="host", workload="ten", blocks=1)

    async def cut_short():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.9):
                await run_session(booth, plan, "r", Slot(0, 0, one))
        return await found.list({})

    assert virtually(cut_short()) == ()
    assert found.closed
