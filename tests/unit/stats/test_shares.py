import pytest

from excise.stats.shares import Recording, shares
from excise.trace import Span

S = 10**9


def span(name, start_s, end_s, sandbox="a", guest_s=None):
    return Span(name, sandbox, round(start_s * S), round(end_s * S), guest_ns=None if guest_s is None else round(guest_s * S))


LIFE = [
    span("create", 100, 101),
    span("ready", 101, 101.5),
    span("action", 105, 107, guest_s=1.7),
    span("cleanup", 109.5, 110),
]


def test_a_lifetime_is_divided_into_model_work_and_tax():
    found = shares(LIFE)
    assert found.work_s == pytest.approx(1.7)
    assert found.tax_s == pytest.approx(1 + 0.5 + 0.3 + 0.5)
    assert found.model_s == pytest.approx(3.5 + 2.5)
    assert found.total_s == pytest.approx(10)
    assert str(found) == "model 60 %, work 17 %, tax 23 %"


def test_an_action_without_a_clock_inside_is_undivided_rather_than_guessed():
    found = shares([*LIFE[:2], span("action", 105, 107), LIFE[3]])
    assert (found.work_s, found.undivided_s) == (0, pytest.approx(2))
    assert str(found) == "model 60 %, work 0 %, tax 20 %, undivided 20 %"


def test_concurrent_rollouts_are_summed_sandbox_by_sandbox():
    other = [
        span(s.name, s.start_ns / S + 1, s.end_ns / S + 1, "b", None if s.guest_ns is None else s.guest_ns / S) for s in LIFE
    ]
    mixed = sorted([*LIFE, *other], key=lambda s: s.start_ns)
    one, two = shares(LIFE), shares(mixed)
    assert two.sandboxes == 2
    assert two.total_s == pytest.approx(2 * one.total_s)
    assert two.model_s == pytest.approx(2 * one.model_s)


def test_actions_at_once_in_one_sandbox_never_count_a_second_twice():
    found = shares(
        [span("create", 0, 1), span("action", 2, 4, guest_s=2), span("action", 2, 4, guest_s=2), span("cleanup", 4, 5)]
    )
    assert found.total_s == pytest.approx(5)
    assert found.model_s == pytest.approx(1)


def test_a_verb_that_still_runs_is_left_out():
    found = shares([span("create", 1, 2), Span("action", "a", 2 * S)])
    assert found.total_s == pytest.approx(1)


def test_a_guest_clock_that_runs_ahead_cannot_make_tax_negative():
    found = shares([span("action", 0, 1, guest_s=1.2)])
    assert (found.work_s, found.tax_s) == (pytest.approx(1), 0)


def test_an_empty_recording_says_so():
    assert str(Recording()).startswith("no sandbox was used here")
