"""Plans of claims: their cells, what they refuse, and a run of blocks that can be gone on with."""

import itertools
from pathlib import Path

import pytest
from test_pool_session import Kept, Ten

from excise.errors import SpecError, SubstrateError
from excise.meter.admission import Admitted
from excise.meter.booth import Booth
from excise.meter.pool_forecast import trial_s
from excise.meter.pool_records import PoolCell, PoolPlan
from excise.meter.pool_run import conduct_pools, header_of, interrupted, order, whole_blocks
from excise.meter.records import Skipped
from excise.meter.results import kind_of, load, load_pools
from excise.plans import PoolPlanFile, load_latencies, load_rollouts, overridden_pools
from excise.plans import load_pools as load_plan
from excise.plans.pools import PoolGrid
from excise.substrate import Capabilities
from excise.substrates.fake.virtual_time import run as virtually

TASKS = 200


def test_mixed_has_nine_cells_with_three_modes_each():
    plan = load_plan("mixed")
    cells = plan.cells(TASKS)
    pooled = {(cell.zipf, cell.memory_percent, cell.mode) for cell in cells if cell.mode != "none"}
    assert pooled == {(z, m, mode) for z in (0.0, 0.8, 1.2) for m in (10, 25, 50) for mode in ("exact", "closest")}
    assert {cell.zipf for cell in cells if cell.mode == "none" and not cell.kept} == {0.0, 0.8, 1.2}
    assert {cell.places for cell in cells if cell.memory_percent == 25} == {50}
    assert len({(cell.claims, cell.arrivals_per_s) for cell in cells}) == 1
    assert plan.repositories * 2 == TASKS


def test_the_modes_of_a_cell_differ_in_how_they_match_alone():
    for one in load_plan("mixed").cells(TASKS):
        if one.mode == "closest":
            exact = one.address.replace("match=closest", "match=exact")
            assert any(other.address == exact and other.beside() == one.beside() for other in load_plan("mixed").cells(TASKS))


def test_burst_asks_for_up_to_256_with_64_ready_and_with_none():
    cells = [cell for cell in load_plan("burst").cells(TASKS) if cell.source == "namespace"]
    assert {cell.claims for cell in cells if cell.mode == "none"} == {1, 4, 16, 64, 256}
    assert {(cell.claims, cell.idle, cell.places) for cell in cells if cell.mode == "closest"} == {
        (claims, 64, 64) for claims in (1, 4, 16, 64, 256)
    }


def test_warm_has_every_start_state_on_every_source():
    cells = load_plan("warm").cells(TASKS)
    for source in ("namespace", "docker", "docker+guest"):
        own = [cell for cell in cells if cell.source == source]
        assert {cell.state for cell in own if cell.mode == "none"} == {"cold", "warm", "repo-warm", "deps-warm"}
        assert {cell.depth for cell in own if cell.state == "pooled"} == {"base", "image", "repo", "sibling", "deps"}


def test_a_pool_goes_over_a_source_with_its_options():
    grid = PoolGrid(sources=("docker+guest?host=unix:///x",), modes=("exact",), places=3, options={"reuse": "never"})
    (cell,) = grid.cells(TASKS)
    assert cell.address == "pool:docker+guest?pool.match=exact&pool.count=3&pool.reuse=never&host=unix:///x"
    assert cell.source == "docker+guest?host=unix:///x"


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ({"modes": ("closest",)}, "places, or memory_percent"),
        ({"modes": ("closest",), "places": 2, "memory_percent": (10,)}, "places, or memory_percent"),
        ({"states": ("pooled",)}, "depths are a pool's"),
        ({"depths": ("deps",)}, "belong together"),
        ({"idle": 3}, "belong together"),
        ({"claims": (0,)}, "1 or more"),
        ({"lead": 2.0, "zipf": (0.8,)}, "from 0 to 1"),
        ({"lead": 0.5}, "give zipf"),
        ({"arrivals_per_s": -1.0}, "all at once"),
    ],
)
def test_a_contradiction_is_refused(factors, sentence):
    with pytest.raises(SpecError, match=sentence):
        PoolGrid(sources=("fake",), **factors)


def test_an_odd_number_of_repositories_is_refused():
    with pytest.raises(SpecError, match="even number"):
        PoolPlanFile(grids=(PoolGrid(sources=("fake",)),), repositories=3, blocks=1)


def test_a_plan_without_an_end_is_refused():
    with pytest.raises(SpecError, match="blocks, or budget_s"):
        PoolPlanFile(grids=(PoolGrid(sources=("fake",)),))


def test_other_readers_say_who_runs_it():
    for reader in (load_rollouts, load_latencies):
        with pytest.raises(SpecError, match="excise measure --plan mixed"):
            reader("mixed")
    with pytest.raises(SpecError, match="excise measure --plan smoke"):
        load_plan("smoke")


def test_only_some_sources_of_a_plan():
    narrowed = load_plan("burst").narrowed(["namespace"])
    assert {cell.source for cell in narrowed.cells(TASKS)} == {"namespace"}
    with pytest.raises(SpecError, match="no cell of local"):
        load_plan("burst").narrowed(["local"])


def test_blocks_end_a_budget_and_a_budget_ends_blocks():
    plan = load_plan("mixed")
    assert (overridden_pools(plan, blocks=None, budget_s=60.0).blocks, plan.blocks) == (None, 6)
    assert overridden_pools(plan, blocks=3, budget_s=None, seed=9).seed == 9


NONE = PoolCell(source="fake", address="fake", claims=2)
POOLED = PoolCell(source="fake", address="pool:fake", mode="exact", state="pooled", places=2, claims=2)
ABLE = Admitted(substrate=Kept(), capabilities=Capabilities(keeps_steps=True))


def plan_of(*cells, blocks=2):
    return PoolPlan(cells=cells, image="host", workload="ten", blocks=blocks, warmup_blocks=1)


def booth():
    return Booth(connect=lambda _: Kept(), mixed=Ten(), image="host")


def run(plan, path, seen, **how):
    header = header_of(plan, seen, path, None)
    return virtually(conduct_pools(header, path, booth(), lambda _: None, **how))


def test_a_run_has_every_cell_in_every_block_and_is_read_back(tmp_path: Path):
    told = []
    plan = plan_of(NONE, POOLED)
    header = header_of(plan, {"fake": ABLE, "pool:fake": ABLE}, tmp_path / "r", "sha256:x")
    found, trials = virtually(conduct_pools(header, tmp_path / "r", booth(), told.append))
    assert found == header
    assert kind_of(tmp_path / "r") == "pool"
    assert [(trial.block, trial.warmup) for trial in trials] == [(0, True)] * 2 + [(1, False)] * 2 + [(2, False)] * 2
    assert whole_blocks(plan.cells, trials) == (0, 1, 2)
    assert {trial.position for trial in trials} == {0, 1}
    assert [one.block for one in told] == [0, 0, 1, 1, 2, 2]


def test_a_run_that_was_cut_goes_on_with_the_next_block(tmp_path: Path):
    path = tmp_path / "r"
    run(plan_of(NONE, blocks=3), path, {"fake": ABLE})
    file = path / "trials.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    header, done = interrupted(path)
    assert (done.next_block, done.measured) == (3, 2)
    _, trials = virtually(conduct_pools(header, path, booth(), lambda _: None, done=done))
    assert [(trial.block, trial.warmup) for trial in trials] == [(0, True), (1, False), (2, False), (3, True), (4, False)]


def test_results_of_pools_are_not_taken_for_rollouts(tmp_path: Path):
    run(plan_of(NONE), tmp_path / "r", {"fake": ABLE})
    with pytest.raises(SpecError, match="has pool results"):
        load(tmp_path / "r")
    with pytest.raises(SpecError, match="has rollout results"):
        load_pools(Path(__file__).parent / "golden/4")


def test_who_keeps_no_steps_has_no_row_that_begins_with_them(tmp_path: Path):
    unable = Admitted(substrate=Kept(), capabilities=Capabilities())
    kept = PoolCell(source="fake", address="fake", kept=True)
    warm = PoolCell(source="fake", address="fake", state="deps-warm")
    header = header_of(plan_of(NONE, kept, warm), {"fake": unable}, tmp_path / "r", None)
    assert header.plan.cells == (NONE,)
    assert {one.reason for one in header.skipped} == {"fake keeps nothing of a spec's steps"}


def test_a_plan_of_which_nothing_runs_says_why(tmp_path: Path):
    with pytest.raises(SubstrateError, match="no daemon"):
        header_of(plan_of(NONE), {"fake": Skipped("fake", "no daemon")}, tmp_path / "r", None)


def test_cold_cells_are_last_and_the_order_is_drawn():
    cold = PoolCell(source="fake", address="fake", state="cold")
    plan = plan_of(cold, NONE, POOLED)
    orders = {tuple(order(plan, block)) for block in range(20)}
    assert len(orders) == 2
    assert all(one[-1] == cold for one in orders)


def test_the_modes_of_a_cell_follow_each_other_in_either_order():
    plan = PoolPlan(cells=load_plan("mixed").cells(TASKS), image="", workload="")
    firsts = set()
    for block in range(12):
        cells = order(plan, block)
        assert sorted(cells, key=repr) == sorted(plan.cells, key=repr)
        for one, other in itertools.pairwise(cells):
            if one.mode == "exact" and one.zipf == 0.8 and one.places == 50:
                near = {other, cells[cells.index(one) - 1]}
                assert any(cell.mode == "closest" and (cell.zipf, cell.places) == (0.8, 50) for cell in near)
                firsts.add(other.mode == "closest" and other.places == 50 and other.zipf == 0.8)
    assert firsts == {True, False}


def test_a_forecast_has_what_leads_in_and_what_arrives():
    led = PoolCell(source="s", address="p", lead=100, places=50, claims=30, arrivals_per_s=6.0)
    plain = PoolCell(source="s", address="s", claims=30, arrivals_per_s=6.0)
    assert trial_s(plain, {"s": 0.01}) == pytest.approx(5.3)
    assert trial_s(led, {"s": 0.01}) > trial_s(plain, {"s": 0.01})
    assert trial_s(plain, {"s": 10.0}) > 30
