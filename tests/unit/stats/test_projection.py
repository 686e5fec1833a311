# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import SpecError
from excise.stats.estimate import Estimate
from excise.stats.projection import (
    Costs,
    Line,
    Scenario,
    effective_s,
    project,
    sensitivity,
    worker_hours,
    workers,
)
from synthetic_run import cell, make_run

seconds = st.floats(1e-6, 1e5)
lines = st.builds(lambda fixed, each: Line(fixed_s=fixed, per_action_s=each), seconds, seconds)


@pytest.mark.parametrize(("per_action_s", "hours"), [(0.010, 417), (0.100, 4167)])
def test_the_papers_table_1_per_action(per_action_s, hours):
    found = project(Costs(Line(fixed_s=0.0, per_action_s=per_action_s)))
    assert round(found.hours.value) == hours


@pytest.mark.parametrize(("total_s", "hours"), [(1.0, 278), (42.52, 11811), (23.382, 6495), (42.52 - 23.382, 5316)])
def test_the_papers_tables_per_rollout(total_s, hours):
    # The paper prints 23.4 s; 23.382 s is what its hours come from.
    assert worker_hours(Estimate(total_s)).value == pytest.approx(hours, abs=0.5)


def test_the_interval_goes_through():
    found = worker_hours(Estimate(2.0, 1.0, 3.0), 3600)
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)


def test_what_fails_is_paid_for():
    assert effective_s(10.0, 0.2, 5.0) == pytest.approx(10 + 0.25 * 5)
    assert effective_s(10.0, 0.0, 5.0) == 10.0


def test_workers_do_whole_rollouts():
    # 10 s each: a worker does 360 in an hour, so 1,000 need three.
    assert workers(Estimate(10.0), 1000, 3600).value == 3
    # 40 s in a minute: one each.
    assert workers(Estimate(40.0), 1000, 60).value == 1000
    assert workers(Estimate(61.0), 1000, 60).value == math.inf
    assert workers(Estimate(0.1), 600, 60).value == 1
    with pytest.raises(SpecError, match="leaves no time"):
        workers(Estimate(1.0), 1, 0)


def test_a_scenario_by_hand():
    line = Line(fixed_s=8.0, per_action_s=0.5)
    scenario = Scenario(actions=10, think_s=1.0, reuse=4, reset_s=0.4, failure_rate=0.5, failed_share=0.5)
    once = 8 / 4 + 0.4 * 3 / 4 + 10 * 1.5
    assert scenario.seconds(line) == pytest.approx(once + 0.5 * once)


@pytest.mark.parametrize(
    "wrong",
    [{"actions": 0}, {"rollouts": 0}, {"rollouts": math.inf}, {"reuse": 0}, {"failure_rate": 1.0}, {"think_s": -1.0}],
)
def test_a_scenario_that_cannot_be_is_refused(wrong):
    with pytest.raises(SpecError):
        Scenario(**wrong)


def test_a_rows_projection_meets_its_total_at_its_own_length():
    row = make_run({cell("chroot"): (1, 1), cell("docker"): (300, 50)})["docker"]
    own, longer = (project(row.costs, Scenario(actions=n)) for n in (row.actions, 150))
    assert (own.composed, longer.composed) == (False, True)
    assert own.total_s.value == pytest.approx(row.total_s.value)
    assert own.total_s.low == pytest.approx(row.total_s.low)
    assert longer.hours.low < longer.hours.value < longer.hours.high


def test_every_factor_has_its_curve_through_the_scenario():
    costs = Costs(Line(fixed_s=3.0, per_action_s=0.2))
    curves = {curve.factor: dict(curve.points) for curve in sensitivity(costs)}
    assert set(curves) == {"actions", "rollouts", "think_s", "reuse", "failure_rate"}
    plain = project(costs).hours
    for factor, at in (("actions", 150), ("rollouts", 1e6), ("think_s", 0), ("reuse", 1), ("failure_rate", 0)):
        assert curves[factor][at].hours == plain
    assert curves["rollouts"][1e7].hours.value == pytest.approx(10 * plain.value)
    assert curves["actions"][300].total_s.value == pytest.approx(3 + 300 * 0.2)


RISING = {"actions": 1.0, "think_s": 0.1, "failure_rate": 0.01}


@given(lines, st.sampled_from(sorted(RISING)), st.integers(1, 50))
def test_more_of_what_costs_costs_more(line, factor, times):
    plain = Scenario()
    more = msgspec.structs.replace(plain, **{factor: getattr(plain, factor) + times * RISING[factor]})
    assert more.seconds(line) >= plain.seconds(line)


@given(lines, st.integers(1, 1000), st.integers(1, 1000))
def test_reuse_never_costs_more_and_never_less_than_the_actions(line, actions, reuse):
    found = Scenario(actions=actions, reuse=reuse).seconds(line)
    assert found <= Scenario(actions=actions).seconds(line) * (1 + 1e-9)
    assert found >= actions * line.per_action_s * (1 - 1e-9)


@given(st.floats(1e-3, 1e4), st.integers(1, 10**7), st.floats(1.0, 1e6))
def test_as_many_workers_as_needed_and_not_one_more(total_s, rollouts, deadline_s):
    needed = workers(Estimate(total_s), rollouts, deadline_s).value
    each = math.floor(deadline_s / total_s * (1 + 1e-12))
    if needed == math.inf:
        assert each == 0
    else:
        assert needed * each >= rollouts > (needed - 1) * each
