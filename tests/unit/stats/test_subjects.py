# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOptionalMemberAccess=false

import msgspec
import pytest

from excise.errors import SpecError
from excise.report.projected import text
from excise.stats.projection import Scenario, project
from excise.stats.run import Run
from excise.stats.subjects import given, of_run
from synthetic_run import ACTIONS, cell, make_run

LINES = {cell("chroot"): (1, 1), cell("docker"): (300, 50)}


def failing(run, blocks):
    trials = [
        msgspec.structs.replace(t, failure="lost") if t.block in blocks and t.cell.address == "docker" else t
        for t in run._results.trials
    ]
    return Run(msgspec.structs.replace(run._results, trials=tuple(trials)))


def test_a_row_fails_as_often_as_it_did():
    run = failing(make_run(LINES, spread=0.0), {1, 2, 3, 4, 5})
    row = run["docker"]
    measured, asked = (of_run(run, Scenario(actions=ACTIONS, failure_rate=0.0), failing=how)[1] for how in (True, False))
    assert measured.scenario.failure_rate == pytest.approx(0.25)
    assert asked.scenario.failure_rate == 0.0
    # At the measured length this is what the row says itself.
    assert project(measured.costs, measured.scenario).total_s.value == pytest.approx(row.per_success_s.value)
    assert project(asked.costs, asked.scenario).total_s.value == pytest.approx(row.total_s.value)


def test_rows_of_several_workloads_say_which():
    run = make_run({**LINES, cell("chroot", "t1"): (1, 1), cell("docker", "t1"): (300, 50)})
    assert [s.name for s in of_run(run, Scenario(), failing=True)] == [
        "chroot on t0",
        "docker on t0",
        "chroot on t1",
        "docker on t1",
    ]
    assert [s.name for s in of_run(make_run(LINES), Scenario(), failing=True)] == ["chroot", "docker"]


def test_only_rows_that_do_the_same_work_break_even():
    dear, cheap = (300, 5), (1, 50)
    run = make_run({cell(a, w): line for w in ("t0", "t1") for a, line in (("chroot", cheap), ("docker", dear))})
    told = text(of_run(run, Scenario(), failing=True))
    assert [line.split(" above")[0] for line in told.splitlines() if " is cheaper than " in line] == [
        "  docker on t0 is cheaper than chroot on t0",
        "  docker on t1 is cheaper than chroot on t1",
    ]


def test_a_run_without_a_success_cannot_be_projected():
    run = failing(make_run({cell("docker"): (300, 50)}, reference=None), range(99))
    with pytest.raises(SpecError, match="no whole block with a successful trial"):
        of_run(run, Scenario(), failing=True)


def test_times_that_are_given_in_pairs():
    found = given([2.0, 3.0], [10.0, 20.0], Scenario(actions=100))
    assert [subject.name for subject in found] == ["2 s + 10 ms an action", "3 s + 20 ms an action"]
    assert [project(s.costs, s.scenario).total_s.value for s in found] == pytest.approx([3.0, 5.0])
    assert not any(subject.whole for subject in found)
    assert given([2.0], [], Scenario())[0].whole
