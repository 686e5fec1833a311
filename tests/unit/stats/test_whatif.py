# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import pytest

from excise.stats.ladder import ladder
from excise.stats.projection import Scenario
from excise.stats.whatif import what_ifs
from synthetic_run import cell, make_run

LINES = {
    cell("chroot"): (1, 1),
    cell("docker"): (300, 50),
    cell("docker", shell="session"): (300, 30),
    cell("docker", reset="git"): (40, 50),
    cell("docker+guest"): (310, 2),
    cell("namespace"): (12, 1.5),
}


@pytest.fixture(scope="module")
def run():
    return make_run(LINES)


def test_what_saves_most_is_first_and_one_of_a_kind_is_told(run):
    found = what_ifs(run.rows)
    assert [(one.change, one.then.address) for one in found] == [
        ("substrate", "namespace"),
        ("path", "docker+guest"),
        ("shell", "docker"),
    ]
    assert all(one.now == cell("docker") for one in found)


def test_a_saving_by_hand(run):
    best = what_ifs(run.rows)[0]
    # Blocks are slow by lognormal(0, 0.3): both rows alike, so by what the reference's mean says.
    busy = run["chroot"].total_s.value / 0.013
    assert best.saving_s.value == pytest.approx(busy * (0.288 + 150 * 0.0485), rel=0.05)
    assert best.saving_s.low < best.saving_s.value < best.saving_s.high
    assert best.saving_hours.value == pytest.approx(best.saving_s.value * 1e6 / 3600)
    assert 0.8 < best.share < 1


def test_of_short_rollouts_resets_help_more_than_shells(run):
    found = what_ifs(run.rows, scenario=Scenario(actions=1), most=9)
    assert [one.change for one in found][:2] == ["substrate", "reset"]
    assert "path" in {one.change for one in found}


def test_each_says_what_to_do_and_the_command_that_shows_it(run):
    by = {one.change: one for one in what_ifs(run.rows, most=9)}
    assert by["substrate"].sentence == "namespace instead of docker"
    assert by["path"].command == "excise measure docker docker+guest --workload t0"
    assert by["shell"].command == "excise measure docker --plan paper"
    assert "session instead of exec" in by["shell"].sentence
    short = {one.change: one for one in what_ifs(run.rows, scenario=Scenario(actions=1), most=9)}
    assert "git instead of recreate" in short["reset"].sentence


def test_only_what_was_measured_is_told(run):
    """No saving is computed from a row alone: not every substrate has, say, a batch of its own."""
    assert what_ifs([run["namespace"]]) == ()
    assert all(one.now != one.then and one.then in LINES for one in what_ifs(run.rows, most=9))


def test_nobody_is_advised_to_go_without_a_sandbox():
    run = make_run({cell("chroot"): (1, 1), cell("local"): (0.5, 0.5), cell("docker"): (300, 50)})
    assert what_ifs(run.rows) == ()


def test_what_may_be_no_saving_is_not_told():
    run = make_run({cell("chroot"): (1, 1), cell("a"): (100, 5), cell("b"): (100, 5)}, spread=0.3)
    assert "substrate" not in {one.change for one in what_ifs(run.rows)}


def test_from_another_row_and_from_none(run):
    assert what_ifs(run.rows, now=run["namespace"]) == ()
    assert what_ifs([]) == ()


def test_cells_that_differ_in_two_factors_are_not_compared(run):
    found = what_ifs(run.rows, now=run.row(address="docker", shell="session"), most=9)
    assert found == ()


def test_pools_are_a_change_of_their_own():
    run = make_run({cell("chroot"): (1, 1), cell("docker"): (300, 50), cell("pool:docker"): (5, 50)})
    assert what_ifs(run.rows, scenario=Scenario(actions=1))[0].change == "pool"


def test_the_ladder_has_a_rung_for_each_path_the_cheapest_first(run):
    rungs = ladder(run.rows)
    assert [(rung.cell.address, rung.cell.shell) for rung in rungs] == [
        ("chroot", "exec"),
        ("namespace", "exec"),
        ("docker+guest", "exec"),
        ("docker", "session"),
        ("docker", "exec"),
    ]
    assert rungs[0].reference
    top = rungs[-1]
    assert top.hours.value == pytest.approx(top.dispatch_s.value * 150e6 / 3600)
    assert top.hours.low < top.hours.value < top.hours.high


def test_rows_without_a_reference_have_no_rung():
    assert ladder(make_run({cell("docker"): (300, 50)}, reference=None).rows) == ()
