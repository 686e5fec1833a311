import pytest

from excise.economics.demand import Demand, Prices, on_host
from excise.errors import SpecError


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": 0},
        {"parallel": 0},
        {"rollouts": 0},
        {"work_s": -1.0},
        {"think_s": float("nan")},
        {"resets": float("inf")},
        {"starts_per_hour": 0.0},
        {"kernel": "none"},
        {"isolates": frozenset({"dreams"})},
    ],
)
def test_what_cannot_be_wanted_is_one_sentence(wrong):
    with pytest.raises(SpecError):
        Demand(**wrong)


@pytest.mark.parametrize("wrong", [{"worker": -1.0}, {"waiting": float("nan")}, {"worker": 0.0}])
def test_prices_are_numbers_and_something_costs_something(wrong):
    with pytest.raises(SpecError):
        Prices(**wrong)


def test_prices_left_out_are_those_of_a_worker():
    found = on_host(Prices(worker=3.6), cores=2, memory_bytes=8 << 30)
    assert found.ahead == found.worker == pytest.approx(0.001)
    assert found.gib == pytest.approx(0.001 * 2 / 8)
    assert on_host(Prices(ahead=0.0, gib=0.0), 2, 8 << 30).gib == 0


def test_isolation_is_judged_by_kernel_and_by_what_is_kept_apart():
    wanted = Demand(kernel="intercepted", isolates=frozenset({"files", "network"}))
    assert wanted.satisfied("own", frozenset({"files", "network", "ipc"}))
    assert not wanted.satisfied("shared", frozenset({"files", "network"}))
    assert not wanted.satisfied("own", frozenset({"files"}))
