"""The instrument is believed only if it can be found wrong."""

import random

import pytest

from excise.meter.selfcheck import AGAIN, DELAYED, ONCE, time_copies
from excise.stats.coverage import Case, cases, cover
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, Blocks
from excise.stats.selfcheck import alike, coverage, delayed
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.t0 import T0


@pytest.mark.parametrize("case", [case for case in cases() if case.judged], ids=lambda case: case.name)
def test_every_interval_holds_what_it_says(case):
    found = cover(case, experiments=600)
    # 600 experiments leave two standard errors of 0.9 % on either side; `excise check meter` does more.
    assert 0.92 <= found.share <= 0.98


def test_what_no_interval_can_hold_is_told_and_not_judged():
    told = [case for case in cases() if not case.judged]
    assert len(told) == 1
    found = cover(told[0], experiments=600)
    assert found.share < 0.93
    assert not found.fault
    finding = list(coverage(experiments=20))[-1]
    assert finding.kept is None
    assert "not judged: what did not happen" in finding.seen


@pytest.mark.parametrize("width", [0.5, 2.0])
def test_intervals_that_are_too_narrow_or_too_wide_are_found(width):
    def draw(chance: random.Random) -> Estimate:
        values = [chance.gauss(1.0, 0.1) for _ in range(10)]
        found = Blocks({"a": values, "n": [1.0] * 10}).estimate(lambda sums: sums["a"] / sums["n"], POSITIVE)
        assert found.low is not None
        assert found.high is not None
        return Estimate(found.value, 1 + (found.low - 1) * width, 1 + (found.high - 1) * width).through(
            lambda x: x + (found.value - 1) * (1 - width)
        )

    assert cover(Case(name="x", truth=1.0, draw=draw), experiments=500).fault


def test_an_experiment_without_interval_holds_nothing():
    assert cover(Case(name="x", truth=1.0, draw=lambda _: Estimate(1.0)), experiments=3).share == 0
    assert cover(Case(name="x", truth=1.0, draw=lambda _: None), experiments=3).share == 0


def noisy(seed: int, mean_s: float) -> list[float]:
    chance = random.Random(seed)  # noqa: S311 - a simulation
    return [mean_s * chance.lognormvariate(0, 0.1) for _ in range(24)]


def test_the_same_twice_does_not_differ_and_another_does():
    assert alike(noisy(1, 0.1), noisy(2, 0.1)).kept
    assert not alike(noisy(1, 0.1), noisy(2, 0.13)).kept


def test_a_delay_is_found_and_none_is_not():
    found = delayed(noisy(1, 0.1), noisy(2, 0.14), actions=4, delay_s=0.01)
    assert found.kept
    assert found.seen.startswith("10.") or found.seen.startswith("9.")
    assert not delayed(noisy(1, 0.1), noisy(2, 0.1), actions=4, delay_s=0.01).kept


def test_the_delayed_copy_takes_exactly_that_longer():
    took_s = virtually(time_copies(FakeSubstrate(), T0(actions=3), blocks=6, delay_s=0.010))
    assert {name: len(values) for name, values in took_s.items()} == {ONCE: 6, AGAIN: 6, DELAYED: 6}
    assert took_s[ONCE] == took_s[AGAIN]
    assert [b - a for a, b in zip(took_s[ONCE], took_s[DELAYED], strict=True)] == pytest.approx([0.030] * 6)
    assert delayed(took_s[ONCE], took_s[DELAYED], 3, 0.010).seen.startswith("10.00 ms")
