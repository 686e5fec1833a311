# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import msgspec
import pytest

from excise.errors import SpecError
from excise.meter.results import Writer
from excise.stats.run import Run, ratio
from synthetic_run import cell, make_run, make_trial

TWO = {cell("chroot"): (1, 1), cell("docker"): (300, 50), cell("docker", shell="session"): (300, 30)}


def test_an_address_with_one_row_is_enough():
    assert make_run(TWO)["chroot"].cell == cell("chroot")


def test_an_address_with_two_names_both_cells():
    run = make_run(TWO)
    with pytest.raises(KeyError, match=r"2 rows have address='docker'.*run\.row.*docker on t0; docker \(shell session\) on t0"):
        run["docker"]
    assert run.row(address="docker", shell="session").cell.shell == "session"
    assert run.row(address="docker", shell="exec").name == "docker"


def test_a_row_that_is_not_there_says_what_is():
    run = make_run(TWO, skipped=[("runc", "runc is not installed")])
    with pytest.raises(KeyError, match="no row has address='chroot', workload='t9'; there are: chroot on t0"):
        run.row(address="chroot", workload="t9")
    with pytest.raises(KeyError, match="no factor 'colour'; it has: address, workload"):
        run.row(colour="red")
    with pytest.raises(KeyError, match="runc was skipped: runc is not installed"):
        run["runc"]
    with pytest.raises(KeyError, match="podman is not in this run; there are: chroot, docker"):
        run["podman"]


def test_amortised_and_isolated_per_action():
    row = make_run({cell("chroot"): (1, 1), cell("docker"): (300, 50)}, blocks=60)["docker"]
    assert row.amortised_s.value == pytest.approx(row.total_s.value / row.actions)
    busy = row.start_s.value / 0.270
    assert row.action_p50_s.value == pytest.approx(busy * 0.052, rel=0.1)
    assert row.action_p50_s.low < row.action_p50_s.value < row.action_p50_s.high
    assert row.action_p95_s.value > row.action_p50_s.value
    assert row.amortised_s.value > 2 * row.action_p50_s.value


def test_think_time_is_a_term_of_its_own_and_takes_the_worker():
    plain, thinking = cell("docker"), cell("docker", think_s=2.0)
    run = make_run({cell("chroot"): (1, 1), plain: (300, 50), thinking: (300, 50)}, spread=0.0)
    row, beside = run.row(address="docker", think_s=2.0), run.row(address="docker", think_s=0.0)
    assert row.think_s.value == pytest.approx(8.0)
    assert beside.think_s is None
    assert row.total_s.value == pytest.approx(beside.total_s.value)
    assert row.total_p50_s.value == pytest.approx(beside.total_p50_s.value)
    assert ratio(row, beside).value == pytest.approx(1.0)
    assert row.tax_rate.value == pytest.approx(beside.tax_rate.value)
    assert row.per_success_s.value == pytest.approx(beside.per_success_s.value + 8.0)
    assert row.unattributed_s.value == pytest.approx(0, abs=1e-6)


def test_a_wave_is_one_observation():
    alone, waves = cell("docker"), cell("docker", concurrency=8)
    run = make_run({cell("chroot"): (1, 1), alone: (300, 50), waves: (300, 50)}, blocks=30, spread=0.0)
    one, eight = run.row(address="docker", concurrency=1), run.row(address="docker", concurrency=8)
    assert (one.n, eight.n) == (30, 240)
    # All eight are slow in a slow block: eight times the trials tell nothing more.
    assert eight.total_s.low == pytest.approx(one.total_s.low)
    assert eight.total_p50_s.low == pytest.approx(one.total_p50_s.low, rel=0.05)
    assert eight.total_p50_s.high == pytest.approx(one.total_p50_s.high, rel=0.05)
    assert eight.total_p95_s is None
    assert eight.action_p95_s is None
    assert not eight.reference
    assert ratio(eight, one).value == pytest.approx(1.0)


def test_below_six_blocks_lanes_and_actions_have_no_interval_either():
    waves = cell("docker", concurrency=32)
    for blocks, known in ((5, False), (6, True)):
        row = make_run({cell("chroot"): (1, 1), waves: (300, 50)}, blocks=blocks, spread=1.5)["docker"]
        assert [one is not None for one in (row.total_p50_s, row.action_p50_s, row.waited_p50_s)] == [known] * 3


@pytest.mark.parametrize("change", [{"wall_ns": 10**30}, {"wall_ns": -1}, {"cpu_s": 1e308}, {"spans": 10**19}])
def test_a_time_that_no_rollout_takes_is_damage(change):
    run = make_run({cell("chroot"): (1, 1), cell("docker"): (300, 50)}, blocks=6)
    first, *rest = run._results.trials
    if "spans" in change:
        change = {"spans": (msgspec.structs.replace(first.spans[0], end_ns=change["spans"]), *first.spans[1:])}
    trials = (msgspec.structs.replace(first, **change), *rest)
    with pytest.raises(SpecError, match="a time below zero or above a year: the results are damaged"):
        Run(msgspec.structs.replace(run._results, trials=trials))


def test_lanes_that_are_independent_do_tell_more():
    waves = cell("docker", concurrency=8)
    run = make_run({cell("chroot"): (1, 1), waves: (300, 50)}, blocks=30, spread=1.5)
    assert run["docker"].total_p95_s is not None


def test_noisy_trials_are_in_the_main_table_and_reruns_in_the_one_beside_it():
    cells = {cell("chroot"): (1, 1), cell("docker"): (300, 50)}
    again = make_trial(cell("docker"), 3, 300, 50, rerun=True)
    run = make_run(cells, spread=0.0, extra=[again])
    trials = [
        msgspec.structs.replace(t, noisy=True, wall_ns=t.wall_ns * 9)
        if (t.block, t.cell, t.rerun) == (3, cell("docker"), False)
        else t
        for t in run._results.trials
    ]
    run = Run(msgspec.structs.replace(run._results, trials=tuple(trials)))
    everything, quiet = (next(row for row in rows if row.address == "docker") for rows in (run.rows, run.quiet_rows))
    assert run.noisy == 1
    assert (everything.n, quiet.n) == (20, 20)
    assert everything.totals_s[3] > 5 * quiet.totals_s[3]
    assert {b: t for b, t in everything.totals_s.items() if b != 3} == {b: t for b, t in quiet.totals_s.items() if b != 3}


def test_a_trial_that_no_plan_has_is_damage():
    with pytest.raises(SpecError, match="has a trial of runc on t0 that its plan has not"):
        make_run(TWO, extra=[make_trial(cell("runc"), 3, 1, 1)])


def test_bytes_and_failures():
    cells = {cell("chroot"): (1, 1), cell("docker"): (300, 50)}
    run = make_run(cells)
    assert run["docker"].written_bytes.value == pytest.approx(1000)
    trials = [
        msgspec.structs.replace(t, failure="lost", written_bytes=None) if t.block == 3 and t.cell.address == "docker" else t
        for t in run._results.trials
    ]
    row = Run(msgspec.structs.replace(run._results, trials=tuple(trials)))["docker"]
    assert row.failed_s == pytest.approx(run["docker"].totals_s[3])
    assert row.n == 19
    spent = run["docker"].total_s.value * 20
    assert row.per_success_s.value == pytest.approx(spent / 19)


def test_reading_a_directory_a_trial_at_a_time_gives_the_same_run(tmp_path):
    whole = make_run(TWO)
    with Writer(tmp_path / "r", whole.header) as writer:
        for trial in whole._results.trials:
            writer.add(trial)
    found = Run.read(tmp_path / "r")
    assert [row.total_s for row in found.rows] == [row.total_s for row in whole.rows]
    assert (found.blocks, found.header, found.path) == (whole.blocks, whole.header, tmp_path / "r")


def test_work_is_measured_in_the_same_shell_mode_where_the_reference_has_it():
    login = cell("chroot", shell="login")
    lines = {cell("chroot"): (1, 1), login: (1, 1), cell("docker", shell="login"): (300, 50), cell("docker"): (300, 50)}
    run = make_run(lines, spread=0.0)
    trials = [
        msgspec.structs.replace(t, spans=tuple(longer(s) for s in t.spans)) if t.cell.shell == "login" else t
        for t in run._results.trials
    ]
    run = Run(msgspec.structs.replace(run._results, trials=tuple(trials)))
    plain, logged_in = run.row(address="docker", shell="exec"), run.row(address="docker", shell="login")
    assert logged_in.work_s.value == pytest.approx(3 * plain.work_s.value)
    assert logged_in.slowdown_s.value == pytest.approx(0, abs=1e-9)
    assert run.row(address="chroot", shell="login").reference


def longer(span):
    return span if span.guest_ns is None else msgspec.structs.replace(span, guest_ns=3 * span.guest_ns)
