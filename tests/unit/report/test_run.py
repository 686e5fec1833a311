"""What `excise.measure` returns, on the run made by hand."""

import pytest

from excise.errors import SpecError
from excise.stats.estimate import Estimate
from excise.stats.projection import worker_hours


def test_terms_add_up_to_the_mean_total(run):
    for row in run.rows:
        per_action = row.dispatch_s.value + row.slowdown_s.value + row.work_s.value
        parts = row.start_s.value + row.actions * per_action + row.cleanup_s.value + row.unattributed_s.value
        assert parts == pytest.approx(row.total_s.value)
        assert row.tax_s.value == pytest.approx(row.total_s.value - row.actions * row.work_s.value)


def test_warm_ups_and_blocks_that_are_not_whole_are_left_out(made):
    from excise.meter.results import Results
    from excise.stats.run import Run

    whole = made(10)._results
    cut = Run(Results(header=whole.header, trials=whole.trials[:-1], path=whole.path))
    assert (made(10).blocks, cut.blocks) == (10, 9)
    assert cut["chroot"].n == 9


def test_a_longer_rollout_is_composed_and_says_so(run):
    row = run["docker"]
    found = row.rollout(steps=150)
    assert found.composed
    action_s = row.dispatch_s.value + row.slowdown_s.value + row.work_s.value
    assert found.total_s.value == pytest.approx(row.start_s.value + 150 * action_s + row.cleanup_s.value)
    assert found.tax_rate.value == pytest.approx(1 - 150 * row.work_s.value / found.total_s.value)
    assert found.worker_hours(3600).value == pytest.approx(found.total_s.value)
    assert found.total_s.low < found.total_s.value < found.total_s.high


def test_a_rollout_as_long_as_the_trials_is_measured(run):
    found = run["docker"].rollout(steps=1)
    assert not found.composed
    assert found.total_s == run["docker"].total_s


def test_a_busy_host_widens_a_total_and_not_a_ratio(run):
    total, ratio = run["docker"].total_s, run.ratio("docker", "chroot")
    assert total.high - total.low > 0.01
    assert (ratio.low, ratio.high) == (pytest.approx(ratio.value), pytest.approx(ratio.value))
    assert ratio.value == pytest.approx(365 / 10)
    assert run.difference_s("docker", "chroot").value == pytest.approx(1.25 * 0.355)


def test_worker_hours_carry_the_interval(run):
    row = run["docker"]
    hours = row.worker_hours()
    assert hours.value == pytest.approx(row.total_s.value * 1e6 / 3600)
    assert hours.low == pytest.approx(row.total_s.low * 1e6 / 3600)


def test_a_second_is_277_8_hours_per_million():
    assert worker_hours(Estimate(1.0)).value == pytest.approx(277.78, abs=0.01)


def test_failed_trials_are_paid_for_by_those_that_succeed(run):
    row = run["docker?host=tcp://10.0.0.17:2375"]
    assert (row.n, row.attempted) == (45, 60)
    # All of them took as long; those that failed were the fast ones of every other block.
    spent_s = 60 * 1.25 * 0.365
    assert row.per_success_s.value == pytest.approx(spent_s / 45)
    assert row.worker_hours().value == pytest.approx(spent_s / 45 * 1e6 / 3600)
    assert row.per_success_s.low < row.per_success_s.value < row.per_success_s.high
    assert row.total_s.value < row.per_success_s.value


def test_a_row_that_is_not_there_says_why(run):
    with pytest.raises(KeyError, match="runc was skipped: runc is not installed"):
        run["runc"]
    with pytest.raises(KeyError, match="podman is not in this run; there are: chroot, docker"):
        run["podman"]


def test_a_rollout_needs_a_step(run):
    with pytest.raises(SpecError, match="at least one action"):
        run["docker"].rollout(steps=0)
