"""Plans as TOML: what they say, what they refuse, and what becomes of them on a machine."""

from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.meter.latency_records import LatencyPlan
from excise.meter.records import AS_RECORDED, RESETS, Cell
from excise.meter.results import load as load_results
from excise.plans import Grid, RolloutPlan, like, load, load_latencies, load_rollouts, names, overridden
from excise.workloads.registry import make

GOLDEN = Path(__file__).parent / "golden/3"
FIGURES = {f"fig{number}" for number in range(1, 7)}


@pytest.mark.parametrize("name", names())
def test_every_plan_of_the_package_loads_and_its_workloads_exist(name):
    plan = load(name)
    assert isinstance(plan, LatencyPlan) == (name == "bench")
    if isinstance(plan, RolloutPlan):
        made = {text: make(text).name for text in plan.texts()}
        assert plan.cells(["local"], made)
        assert plan.about
        assert plan.blocks or plan.budget_s


def test_the_plans_that_were_promised_are_there():
    assert FIGURES | {"smoke", "quick", "bench", "reset", "paper", "warm", "burst", "mixed"} <= set(names())


def test_every_way_back_to_the_start_is_a_cell():
    (grid,) = load_rollouts("reset").grids
    assert set(grid.resets) == set(RESETS)
    assert "namespace" in grid.addresses


def test_quick_needs_no_image_and_takes_three_minutes():
    plan = load_rollouts("quick")
    assert plan.texts() == ["t0", "t2?runner=plain"]
    assert (plan.image, plan.budget_s, plan.open) == ("host", 180, True)
    assert all(set(grid.states) == {"warm"} for grid in plan.grids)


def written(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return str(path)


GRID = 'kind = "rollout"\n[[grids]]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind = ", "cannot be read"),
        ("blocks = 3", 'begin it with kind = "rollout"'),
        ('kind = "other"', 'begin it with kind = "rollout"'),
        ('kind = "rollout"\ngrids = []', "at least one"),
        (GRID + "wrong = 1", "unknown field `wrong`"),
        (GRID + 'shells = ["fish"]', "Invalid enum value 'fish'"),
        (GRID + "concurrencies = [0]", "give 1 or more"),
        (GRID + "lengths = [0]", "give 1 or more"),
        (GRID + "think_s = [-1.0]", "number of seconds from 0"),
        (GRID + 'states = ["pooled"]', "plans warm, burst and mixed"),
        (GRID + 'states = ["deps-warm"]', "cannot be measured of rollouts"),
    ],
)
def test_a_wrong_plan_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(SpecError, match=sentence) as caught:
        load(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_plan_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SpecError, match="the package has: bench, burst, cluster, fig1"):
        load("nosuch")


def test_each_kind_is_refused_where_the_other_is_wanted():
    with pytest.raises(SpecError, match="measures single operations"):
        load_rollouts("bench")
    with pytest.raises(SpecError, match="measures rollouts"):
        load_latencies("quick")


def test_a_grid_is_every_combination_once():
    grid = Grid(addresses=("a", "b"), workloads=("t0",), lengths=(10, 50), shells=("exec", "login"), think_s=(0.0, "recorded"))
    cells = RolloutPlan(grids=(grid, grid)).cells((), {"t0?actions=10": "t0", "t0?actions=50": "t0?actions=50"})
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2
    assert Cell(address="b", workload="t0") in cells
    assert Cell(address="a", workload="t0?actions=50", shell="login", think_s=AS_RECORDED) in cells


def test_a_grid_without_addresses_is_for_what_runs_here():
    assert [cell.address for cell in RolloutPlan(grids=(Grid(),)).cells(["x", "y"], {"t0": "t0"})] == ["x", "y"]


def test_addresses_narrow_a_plan():
    plan = RolloutPlan(grids=(Grid(addresses=("a", "b")), Grid(addresses=("b", "c"), workloads=("t1",))))
    assert [grid.addresses for grid in plan.narrowed(["b"]).grids] == [("b",), ("b",)]
    assert [grid.addresses for grid in plan.narrowed(["c"]).grids] == [("c",)]
    with pytest.raises(SpecError, match="has no cell of d; it has: a, b, c"):
        plan.narrowed(["d"])
    assert plan.narrowed([]) is plan


def test_what_a_caller_says_goes_before_what_a_plan_says():
    plan = RolloutPlan(grids=(Grid(workloads=("t1",), lengths=(10, 50)),), blocks=100, image="i", seed=1)
    found = overridden(plan, workload="t0", budget_s=5.0, seed=2)
    assert (found.texts(), found.blocks, found.budget_s, found.seed, found.image) == (["t0"], None, 5.0, 2, "i")


def test_the_plan_of_results_is_their_cells():
    plan = like(GOLDEN)
    assert plan.cells((), {"t0": "t0"}) == load_results(GOLDEN).header.plan.cells
    assert (plan.blocks, plan.rerun_noisy, plan.reference) == (1, True, "chroot")
