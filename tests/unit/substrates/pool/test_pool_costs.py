"""What things cost: measured by what they are, then by their kind, then guessed; in bounded memory."""

import sys

import pytest

from excise.action import Shell
from excise.spec import Spec, Stage, Step
from excise.substrates.pool.closeness import switch_of
from excise.substrates.pool.costs import GUESSES_S, LAST, TRIES, Costs
from excise.substrates.pool.state import digest, state_of


def test_a_cost_is_its_own_median_then_its_kinds_then_a_guess() -> None:
    costs = Costs()
    assert costs.seconds("reset", "a") == GUESSES_S["reset"]
    costs.note("reset", "b", 3.0)
    assert costs.seconds("reset", "a") == 3.0
    costs.note("reset", "a", 1.0)
    assert (costs.seconds("reset", "a"), costs.seconds("reset", "b"), costs.seconds("reset", "c")) == (1.0, 3.0, 2.0)
    assert costs.seconds("verify", "a") == GUESSES_S["verify"]


def test_a_median_forgets_one_that_was_slow_and_follows_a_host_that_became_so() -> None:
    costs = Costs()
    for seconds in [1.0] * LAST + [100.0]:
        costs.note("create", "image", seconds)
    assert costs.seconds("create", "image") == 1.0
    for _ in range(LAST):
        costs.note("create", "image", 5.0)
    assert costs.seconds("create", "image") == 5.0


def test_steps_are_known_by_what_they_do_wherever_they_stand() -> None:
    costs = Costs()
    first, second = Spec(repo="u@1", deps="d").all_steps()
    costs.note_steps((second,), 7.0)
    elsewhere = state_of(Spec(image="other", repo="u@2", deps="d", lock=None))
    assert costs.rest_s(elsewhere, 1) == costs.expected_s(elsewhere.steps[1:]) == 7.0
    assert costs.step_s(first) == GUESSES_S["repo"]
    assert costs.step_s(switch_of(first)) == GUESSES_S["switch"]
    costs.note_steps((switch_of(first),), 0.5)
    assert (costs.step_s(first), costs.step_s(switch_of(first))) == (GUESSES_S["repo"], 0.5)


def test_steps_measured_together_share_what_they_took_as_they_were_expected_to() -> None:
    costs = Costs()
    one, two = Step("one", (Shell("1"),)), Step("two", (Shell("2"),), Stage.IMAGE)
    costs.note("deps", digest(one), 3.0)
    costs.note("image", digest(two), 1.0)
    for _ in range(LAST):
        costs.note_steps((one, two), 8.0)
    assert costs.step_s(one) == pytest.approx(6.0)
    assert costs.step_s(two) == pytest.approx(2.0)
    nothing = Costs()
    nothing.note("deps", "x", 0.0)
    nothing.note_steps((one, one), 4.0)
    assert nothing.step_s(one) == 2.0
    nothing.note_steps((), 1.0)


def test_a_create_costs_what_it_was_seen_to_or_the_sum_of_its_parts() -> None:
    costs = Costs()
    want = state_of(Spec(image="i", repo="u@1", deps="d"))
    assert costs.fresh_s(want) == GUESSES_S["create"] + GUESSES_S["repo"] + GUESSES_S["deps"]
    costs.note("fresh", "another", 1.0)  # of another state it says nothing
    assert costs.fresh_s(want) > 1.0
    costs.note("fresh", want.key, 2.0)
    assert costs.fresh_s(want) == 2.0


def test_what_was_not_noted_for_long_is_forgotten() -> None:
    costs = Costs(most_keys=10)
    for number in range(1000):
        costs.note("deps", "kept", 1.0)
        costs.note("deps", str(number), 9.0)
    assert costs.measured("deps", "kept")
    assert costs.measured("deps", "999")
    assert not costs.measured("deps", "900")
    assert sys.getsizeof(costs._by_key) < 10_000
    assert len(costs._by_key) == 10


def test_the_first_switch_is_guessed_from_clones_that_were_measured() -> None:
    costs = Costs()
    first, second = Spec(repo="u@1", deps="d").all_steps()
    costs.note_steps((first, second), 0.35)
    assert costs.step_s(switch_of(first)) < costs.step_s(first) < 0.1
    for _ in range(TRIES):
        costs.note_steps((switch_of(first),), 0.2)
    assert costs.step_s(switch_of(first)) == 0.2


def test_one_slow_switch_is_not_the_last() -> None:
    costs = Costs()
    costs.note("repo", "clone", 1.0)
    for _ in range(2):
        costs.note("switch", "slow", 60.0)
        assert costs.seconds("switch", "slow") == costs.seconds("switch", "another") == 0.4
    costs.note("switch", "slow", 60.0)
    assert costs.seconds("switch", "another") == 60.0


def test_what_the_source_keeps_is_run_once() -> None:
    costs, want = Costs(), state_of(Spec(repo="u@1", deps="d"))
    costs.note("create", want.image, 0.01)
    costs.note_made(want.upto(1), 4.0, 5.0, kept=True)
    assert costs.fresh_s(want) == pytest.approx(0.01 + GUESSES_S["deps"])
    costs.note_made(want, 30.0, 40.0, kept=True)
    assert costs.fresh_s(want) == 0.01
    costs.note_made(want, 0.02, 0.03, kept=True)
    assert costs.fresh_s(want) == 0.03
    assert costs.rest_s(want, 1) == GUESSES_S["deps"]


def test_what_is_run_each_time_says_what_its_steps_take() -> None:
    costs, want = Costs(), state_of(Spec(repo="u@1", deps="d"))
    costs.note_made(want, 0.5, 1.5, kept=False)
    assert costs.fresh_s(want) == 1.5
    assert costs.rest_s(want, 0) == pytest.approx(1.0)
