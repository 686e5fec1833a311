# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

"""Factors of a cell, on `fake` and the virtual clock: what each adds to a trial's time, and what it leaves out."""

import asyncio
import itertools

import msgspec
import pytest

from excise.action import Exec, Write
from excise.meter import cold
from excise.meter.admission import Admitted
from excise.meter.answers import Sameness
from excise.meter.blocks import run_blocks
from excise.meter.cells import refusal, sort_out, with_references
from excise.meter.identity import Answer
from excise.meter.noise import noisy
from excise.meter.places import Fork, Reused
from excise.meter.records import AS_RECORDED, IDENTITY, RESET, THINK, Cell, Plan, Quiet
from excise.meter.rounds import Bench, Rounds, Slot
from excise.sandbox import Sandbox
from excise.spec import Spec, Step
from excise.substrate import Capabilities
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.substrates.local import LocalSubstrate
from excise.trace import Trace, recording
from excise.workloads.t0 import T0
from excise.workloads.workload import Turn

ENGINE = {"create_s": 0.2, "ready_s": 0.05, "action_s": 0.04, "guest_s": 0.003, "close_s": 0.06}
START_S = 0.2 + 0.05 + 0.043
MS = 1_000_000


async def nobody(workload):
    return ()


class Rested(T0):
    """T0 as somebody was recorded at it, who thought a second before each action."""

    def turns(self, nonce):
        return tuple(msgspec.structs.replace(turn, think_s=1.0) for turn in super().turns(nonce))


def rounds_on(substrate, work, **options):
    bench = Bench(substrates={"it": substrate}, workloads={work.name: work}, nulls=frozenset())
    return Rounds(bench, "r", quiet_s=0.02, same=Sameness({}, nobody), **{"identify": False, **options})


def trials_of(substrate=None, *, rounds=1, work=None, identify=False, **factors):
    """The trials of one cell, so many times."""
    work = work or T0()

    async def body():
        runner = rounds_on(substrate or FakeSubstrate(**ENGINE), work, identify=identify)
        cell = Cell(address="it", workload=work.name, **factors)
        try:
            return [trial for block in range(rounds) for trial in await runner.run(Slot(block, 0, cell))]
        finally:
            await runner.close()

    return virtually(body())


def named(trial, name):
    return [span for span in trial.spans if span.name == name]


def test_lanes_run_at_once_and_each_is_a_trial():
    trials = trials_of(concurrency=4)
    assert [trial.lane for trial in trials] == [0, 1, 2, 3]
    assert {trial.failure for trial in trials} == {None}
    # Each takes as long as it would alone, and all of them together no longer.
    assert [trial.wall_ns for trial in trials] == [pytest.approx((START_S + 0.43 + 0.06) * 1e9)] * 4
    assert len({trial.spans[0].sandbox for trial in trials}) == 4
    assert len({trial.cpu_s for trial in trials}) == 1


def test_thinking_is_its_own_span_between_actions():
    (trial,) = trials_of(think_s=0.5)
    waits = named(trial, THINK)
    assert [wait.duration_ns for wait in waits] == [pytest.approx(500 * MS)] * 9
    assert {wait.sandbox for wait in waits} == {trial.spans[0].sandbox}
    assert trial.wall_ns == pytest.approx((START_S + 0.43 + 0.06 + 9 * 0.5) * 1e9)


def test_recorded_think_times_are_replayed_where_a_cell_says_so():
    for think_s, waited_s in ((AS_RECORDED, 9.0), (0.0, 0.0)):
        (trial,) = trials_of(work=Rested(), think_s=think_s)
        assert sum(wait.duration_ns for wait in named(trial, THINK)) == pytest.approx(waited_s * 1e9)


def test_a_snapshot_brings_one_sandbox_back_after_every_rollout():
    trials = trials_of(reset="snapshot", rounds=3)
    assert {trial.failure for trial in trials} == {None}
    for trial in trials:
        assert [len(named(trial, name)) for name in ("create", "ready", "cleanup", RESET)] == [0, 0, 0, 1]
    assert len({trial.spans[0].sandbox for trial in trials}) == 1


def test_a_fork_is_a_create_of_its_own():
    trials = trials_of(reset="fork", rounds=2)
    assert {trial.failure for trial in trials} == {None}
    assert [len(named(trial, "create")) for trial in trials] == [1, 1]
    assert len({trial.spans[0].sandbox for trial in trials}) == 2


@pytest.mark.parametrize("kind", [Fork, lambda *start: Reused(*start, by_git=False)])
def test_what_lives_longer_than_a_trial_is_given_back(kind):
    async def body():
        substrate = FakeSubstrate()
        place = kind(substrate, Spec())
        await place.prepare()
        async with place.sandbox(Trace()) as box:
            await box.write("file", b"x")
        await place.close()
        await place.close()
        left = await substrate.list({})
        await substrate.close()
        return left

    assert virtually(body()) == ()


def test_a_reused_sandbox_that_is_lost_is_made_again_for_the_next_trial():
    trials = trials_of(FakeSubstrate(lose=0.04, seed=2), reset="snapshot", rounds=12)
    failed = [trial.failure is not None for trial in trials]
    assert any(failed)
    assert not all(failed)
    first = failed.index(True)
    lives = [trial.spans[0].sandbox for trial in trials if trial.spans]
    assert len(set(lives)) > 1
    assert lives[first] == lives[0]


def test_git_brings_files_and_only_files_back():
    files = (
        Write("kept", b"1"),
        Exec(("sh", "-c", "git init -q . && git add kept && git -c user.name=n -c user.email=e commit -qm m")),
    )
    spec = Spec(steps=(Step("repository", files),))

    async def body():
        substrate = LocalSubstrate()
        place = Reused(substrate, spec, by_git=True)
        try:
            await place.prepare()
            trace = Trace()
            with recording(trace):
                async with place.sandbox(trace) as box:
                    await box.write("kept", b"2")
                    await box.write("new", b"3")
            assert [one.name for one in trace.spans] == ["action", "action", RESET]
            await place.prepare()
            async with place.sandbox(Trace()) as box:
                return await box.read("kept"), [one.name for one in await box.list(".") if one.name != ".git"]
        finally:
            await place.close()
            await substrate.close()

    assert asyncio.run(body()) == (b"1", ["kept"])


def test_what_a_substrate_cannot_do_is_a_reason():
    plain, able = Cell(address="a", workload="t0"), Capabilities(sessions=True, snapshot="files", keeps_steps=True)
    for cell, lacking in (
        (msgspec.structs.replace(plain, shell="session"), "has no sessions"),
        (msgspec.structs.replace(plain, reset="snapshot"), "takes no snapshots"),
        (msgspec.structs.replace(plain, reset="fork"), "takes no snapshots"),
        (msgspec.structs.replace(plain, state="repo-warm"), "keeps nothing of a spec's steps"),
    ):
        assert lacking in refusal(cell, Capabilities())
        assert refusal(cell, able) is None
    assert refusal(plain, Capabilities()) is None


def test_a_cell_whose_start_state_cannot_be_reached_is_left_out_and_the_others_go_on():
    async def body():
        one, work = FakeSubstrate(), T0()
        bench = Bench(substrates={"it": one}, workloads={"t0": work}, nulls=frozenset())
        cells = [Cell(address="it", workload="t0", reset=reset) for reset in ("recreate", "git", "fork")]
        return await sort_out(cells, {"it": Admitted(substrate=one, capabilities=await one.probe())}, bench)

    found = virtually(body())
    assert [cell.reset for cell in found.runnable] == ["recreate", "fork"]
    assert found.skipped[0].cell.reset == "git"
    assert "no git repository" in found.skipped[0].reason


def test_every_workload_has_a_plain_cell_of_the_reference():
    cells = [Cell(address="a", workload="t0", shell="login"), Cell(address="ref", workload="t1")]
    found = with_references(cells, "ref")
    assert set(found) == {*cells, Cell(address="ref", workload="t0")}
    assert with_references(cells, None) == tuple(cells)


def test_cold_drops_the_page_cache_before_each_of_its_trials_and_the_rest_is_warmed_again(monkeypatch):
    told = []
    monkeypatch.setattr(cold, "drop_caches", lambda: told.append("drop"))

    class Telling(FakeSubstrate):
        async def create(self, start, **terms):
            told.append("create")
            return await super().create(start, **terms)

    warm, chilled = Cell(address="it", workload="t0"), Cell(address="it", workload="t0", state="cold")

    async def body():
        runner = rounds_on(Telling(), T0())
        for cell in (warm, chilled, warm, warm, chilled):
            assert [trial.failure for trial in await runner.run(Slot(0, 0, cell))] == [None]

    asyncio.run(body())  # a thread drops it, and virtual time stands still for threads
    assert told == ["create", "drop", "create", "create", "create", "create", "drop", "create"]


def test_dropping_takes_the_right_to(tmp_path):
    drop = tmp_path / "drop_caches"
    assert "root alone" in cold.refusal(drop)
    drop.write_text("")
    assert cold.refusal(drop) is None
    cold.drop_caches(drop)
    assert drop.read_text() == "3\n"


def test_a_sandbox_is_asked_who_it_is_after_its_actions_and_that_is_apart():
    (trial,) = trials_of(identify=True)
    names = [span.name for span in trial.spans]
    assert names[-2:] == [IDENTITY, "cleanup"]
    assert trial.apart_ns == pytest.approx(43 * MS)
    assert trial.wall_ns - trial.apart_ns == pytest.approx((START_S + 0.43 + 0.06) * 1e9)


def test_lanes_are_asked_while_warming_up_only():
    async def body(warmup):
        runner = rounds_on(FakeSubstrate(), T0(), identify=True)
        trials = await runner.run(Slot(0, 0, Cell(address="it", workload="t0", concurrency=2), warmup=warmup))
        return [len(named(trial, IDENTITY)) for trial in trials]

    assert virtually(body(True)) == [1, 1]
    assert virtually(body(False)) == [0, 0]


def test_a_sandbox_that_was_used_before_fails_the_trial_unless_reuse_is_what_the_cell_is_about(monkeypatch):
    monkeypatch.setattr("excise.meter.identity.understood", lambda seen, host: Answer("always the same"))
    fresh = trials_of(identify=True, rounds=2)
    assert [trial.failure is None for trial in fresh] == [True, False]
    assert "the sandbox is a used one" in fresh[1].failure
    assert {trial.identity for trial in fresh} == {"always the same"}
    assert {trial.failure for trial in trials_of(identify=True, rounds=3, reset="snapshot")} == {None}


def test_other_answers_than_the_witnesss_fail_the_trial():
    async def ask(workload):
        return ["other"] * 10

    async def body():
        bench = Bench(substrates={"it": FakeSubstrate()}, workloads={"t0": T0()}, nulls=frozenset())
        same = Sameness({"t0": ["other"] * 10}, ask, "chroot")
        runner = Rounds(bench, "r", quiet_s=0.02, same=same, identify=False)
        return await runner.run(Slot(0, 0, Cell(address="it", workload="t0")))

    (trial,) = virtually(body())
    assert trial.failure.startswith("action 1 did other work")


@pytest.mark.parametrize(
    ("quiet", "expected"),
    [
        (Quiet(window_ns=20 * MS, pressure_ns=0), False),
        (Quiet(window_ns=20 * MS, pressure_ns=1 * MS), False),
        (Quiet(window_ns=20 * MS, pressure_ns=3 * MS), True),
        (Quiet(window_ns=20 * MS, pressure_ns=None), False),
        (Quiet(window_ns=20 * MS, pressure_ns=None, steal_s=0.01), True),
        # Pressure of the last ten seconds is our own doing, too: it judges nobody.
        (Quiet(window_ns=20 * MS, pressure_ns=0, pressure_avg10=99.0), False),
    ],
)
def test_a_window_is_noisy_by_steal_and_by_who_waited_in_it(quiet, expected):
    assert noisy(quiet) is expected


def test_noisy_trials_are_run_once_more_and_both_are_kept(monkeypatch):
    loud = iter([Quiet(window_ns=10, pressure_ns=10), *[Quiet(window_ns=10, pressure_ns=0)] * 9])

    async def scripted(quiet_s):
        return next(loud)

    monkeypatch.setattr("excise.meter.rounds.watch", scripted)
    cells = (Cell(address="it", workload="t0"), Cell(address="it", workload="t0", shell="shell"))
    kept = []

    async def body(**changes):
        plan = Plan(cells=cells, reference=None, blocks=1, **{"warmup_blocks": 0, **changes})
        await run_blocks(plan, rounds_on(FakeSubstrate(), T0()), kept.append, lambda _: None)

    virtually(body(rerun_noisy=True))
    assert [(trial.noisy, trial.rerun) for trial in kept] == [(True, False), (False, False), (False, True)]
    assert kept[2].cell == kept[0].cell
    assert {trial.block for trial in kept} == {0}
    # A warm-up is in no table, so it is not run again.
    loud = itertools.chain([Quiet(window_ns=10, pressure_ns=10)] * 2, itertools.repeat(Quiet(window_ns=10, pressure_ns=0)))
    kept.clear()
    virtually(body(rerun_noisy=True, warmup_blocks=1))
    assert [(trial.warmup, trial.noisy, trial.rerun) for trial in kept] == [(True, True, False)] * 2 + [
        (False, False, False)
    ] * 2


def test_written_bytes_are_those_of_files_on_disks(tmp_path):
    class Writing(T0):
        """One action, a file of a mebibyte."""

        def turns(self, nonce):
            return (Turn(Write("big", b"x" * (1 << 20))),)

    async def body():
        substrate = LocalSubstrate()
        runner = rounds_on(substrate, Writing())
        (trial,) = await runner.run(Slot(0, 0, Cell(address="it", workload="t0")))
        async with Sandbox(substrate) as box:
            home = (await box.run("stat -f -c %T .")).text.strip()
        await substrate.close()
        return trial, home

    trial, filesystem = asyncio.run(body())
    assert trial.failure is None
    if filesystem != "tmpfs":
        assert trial.written_bytes >= 1 << 20
