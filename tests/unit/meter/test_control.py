# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

"""Control blocks: what of a run needs no daemon, once more while every daemon is still; beside the table, never in it."""

import asyncio
import io

import pytest

import excise
from excise import measuring
from excise.cli.control import show
from excise.errors import SpecError
from excise.meter.control import control_plan, refuse_awake
from excise.meter.daemons import Daemon, awake
from excise.meter.records import Cell, Plan, Skipped
from excise.meter.results import load
from excise.meter.resume import interrupted
from excise.plans import Grid, RolloutPlan
from excise.stats.control import controlled
from excise.stats.run import Run

SLOW = "fake?action_s=0.001"
NEEDY = "fake?create_s=0.001"


def process(proc, pid, name, state):
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194560 1 2 3")


def test_a_daemon_that_sleeps_is_awake_and_one_that_is_halted_is_not(tmp_path):
    process(tmp_path, 10, "dockerd", "S")
    process(tmp_path, 11, "containerd", "T")
    process(tmp_path, 12, "docker) S (x", "R")
    process(tmp_path, 13, "kubelet", "R")
    process(tmp_path, 14, "podman", "Z")
    (tmp_path / "15").mkdir()
    assert awake(tmp_path) == (Daemon("dockerd", 10), Daemon("kubelet", 13))


def test_while_one_is_awake_nothing_begins_and_the_sentence_says_what_to_do():
    refuse_awake(())
    with pytest.raises(
        SpecError, match=r"there is dockerd \(process 7\): stop what runs .*`kill -STOP 7`, afterwards `kill -CONT 7`"
    ):
        refuse_awake((Daemon("dockerd", 7),))


def test_without_its_reference_there_is_no_control():
    cells = (Cell(address="engine", workload="t0"), Cell(address="free", workload="t0"))
    plan = Plan(cells=cells, reference="engine", blocks=100, budget_s=60.0)
    with pytest.raises(SpecError, match=r"reference \(engine\) does not run without the daemons"):
        control_plan(plan, ["free"], 6)
    found = control_plan(Plan(cells=cells, reference="free", blocks=100, budget_s=60.0), ["free"], 6)
    assert (found.cells, found.blocks, found.budget_s) == (cells[1:], 6, None)


@pytest.fixture
def measured(tmp_path):
    grids = (Grid(addresses=("local", SLOW, NEEDY), workloads=("t0?actions=2",)),)
    excise.measure(plan=RolloutPlan(grids=grids, reference="local", blocks=6), out=tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def still(measured, monkeypatch):
    """A run after which the daemons are still; one of its addresses was served by them."""
    admit = measuring.admitted

    async def admitted(address, spec, closing, *, named):
        if address == NEEDY:
            return Skipped(address, "its daemon is not there")
        return await admit(address, spec, closing, named=named)

    monkeypatch.setattr(measuring, "awake", lambda: ())
    monkeypatch.setattr(measuring, "admitted", admitted)
    return measured


def controlled_run(path, blocks=6):
    return asyncio.run(measuring.control(path, blocks=blocks, tell=lambda _: None))


def test_control_blocks_are_added_and_the_table_stays_as_it_was(still):
    before, done = Run.read(still), interrupted(still).done
    run = controlled_run(still)
    added = [t for t in load(still).trials if t.control]
    assert {t.cell.address for t in added} == {"local", SLOW}
    assert {t.block for t in added} == set(range(7, 14))
    assert [t.block for t in added if t.warmup] == [7, 7]
    assert run.blocks == before.blocks == 6
    assert [row.total_s for row in Run.read(still).rows] == [row.total_s for row in before.rows]
    # A run that goes on counts them neither as its blocks nor as its time.
    after = interrupted(still).done
    assert (after.measured, after.elapsed_s, after.next_block) == (done.measured, done.elapsed_s, 14)


def test_ratios_stand_beside_those_of_the_run(still):
    assert controlled(Run.read(still)) == ()
    run = controlled_run(still)
    (found,) = controlled(run)
    assert (found.cell.address, found.reference.address, found.n) == (SLOW, "local", 6)
    assert found.measured == run.ratio(SLOW, "local")
    assert found.control.low < found.control.value < found.control.high
    assert found.agrees in (True, False)
    shown = io.StringIO()
    show(run, shown)
    assert f"{SLOW}, t0?actions=2 / local" in shown.getvalue()
    assert "6 blocks of the run, 6 control blocks." in shown.getvalue()


def test_where_all_cells_need_no_daemon_a_control_block_is_still_no_block_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "awake", lambda: ())
    excise.measure("local", reference="local", blocks=1, out=tmp_path / "out")
    run = controlled_run(tmp_path / "out", blocks=1)
    assert (run.blocks, run["local"].n, len(run.control)) == (1, 1, 1)
    assert load(tmp_path / "out").whole_blocks() == (0, 1)


def test_a_daemon_that_asking_woke_up_ends_it_before_anything_is_written(measured, monkeypatch):
    seen = iter([(), (Daemon("dockerd", 7),)])
    monkeypatch.setattr(measuring, "awake", lambda: next(seen))
    lines = (measured / "trials.jsonl").read_bytes()
    with pytest.raises(SpecError, match="dockerd"):
        controlled_run(measured)
    assert (measured / "trials.jsonl").read_bytes() == lines


def test_who_waits_for_a_halted_daemon_is_left_out(measured, monkeypatch):
    admit = measuring.admitted

    async def admitted(address, spec, closing, *, named):
        if address == NEEDY:
            await asyncio.Event().wait()
        return await admit(address, spec, closing, named=named)

    monkeypatch.setattr(measuring, "awake", lambda: ())
    monkeypatch.setattr(measuring, "ADMIT_S", 0.5)
    monkeypatch.setattr(measuring, "admitted", admitted)
    controlled_run(measured, blocks=1)
    assert {t.cell.address for t in load(measured).trials if t.control} == {"local", SLOW}
