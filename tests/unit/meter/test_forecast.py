# Options of the pretend substrate are of several types.
# pyright: reportArgumentType=false

"""How long a plan will take, said before it runs."""

import asyncio

import pytest

import excise
from excise import measuring
from excise.action import Exec
from excise.meter.forecast import earlier, forecast
from excise.meter.records import Cell, Plan
from excise.meter.rounds import Bench
from excise.plans import Grid, RolloutPlan
from excise.spec import Spec, Step
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.t0 import T0

ENGINE = {"create_s": 0.2, "ready_s": 0.05, "action_s": 0.04, "guest_s": 0.003, "close_s": 0.06}


def expected(cell, known=None, **plan):
    async def body():
        work = {one.name: one for one in (T0(), T0(50))}
        bench = Bench(substrates={"it": FakeSubstrate(**ENGINE)}, workloads=work, nulls=frozenset())
        return await forecast(Plan(cells=(cell,), reference="it", **plan), bench, known or {})

    return virtually(body())


def test_a_long_rollout_is_put_together_from_short_ones():
    found = expected(Cell(address="it", workload="t0?actions=50"), blocks=9)
    # 0.353 s around; 50 actions of 43 ms there, and as many of the reference's own: an estimate from above.
    assert 0.353 + 50 * 0.043 < found.block_s < 0.353 + 2 * 50 * 0.043 + 0.5
    assert found.total_s == pytest.approx(10 * found.block_s)
    assert not found.cells[0].measured


def test_thinking_and_lanes_take_their_time():
    plain = expected(Cell(address="it", workload="t0"), blocks=1).block_s
    assert expected(Cell(address="it", workload="t0", think_s=2.0), blocks=1).block_s == pytest.approx(plain + 9 * 2.0)
    assert expected(Cell(address="it", workload="t0", concurrency=4), blocks=1).block_s > 3 * plain


def test_arrivals_take_until_the_last_of_them_has_come():
    cell = Cell(address="it", workload="t0", concurrency=32, arrivals_per_s=0.5)
    assert expected(cell, blocks=1).block_s == pytest.approx(32 / 0.5, abs=0.1)
    busy = Cell(address="it", workload="t0", concurrency=32, arrivals_per_s=1000.0)
    assert expected(busy, blocks=1).block_s == expected(Cell(address="it", workload="t0", concurrency=32), blocks=1).block_s


def test_what_a_workload_sets_up_takes_its_time():
    class Built(T0):
        @property
        def name(self):
            return "built"

        def spec(self, image):
            return Spec(image=image, steps=(Step("build", (Exec(("sleep", "5")),)),))

    async def body(work, cell):
        bench = Bench(substrates={"it": FakeSubstrate(**ENGINE)}, workloads={work.name: work}, nulls=frozenset())
        return (await forecast(Plan(cells=(cell,), reference="it", blocks=1), bench, {})).block_s

    plain = virtually(body(T0(), Cell(address="it", workload="t0")))
    assert virtually(body(Built(), Cell(address="it", workload="built"))) == pytest.approx(plain + 5.043, abs=0.01)


def test_an_earlier_wave_took_until_its_last_rollout_had_ended(tmp_path):
    grid = Grid(addresses=("fake",), concurrencies=(4,), arrivals_per_s=(50.0,))
    run = excise.measure(plan=RolloutPlan(grids=(grid,), reference="fake", blocks=2), out=tmp_path / "results" / "one")
    trials = [trial for trial in run._results.trials if trial.cell.concurrency == 4 and not trial.warmup]
    known = earlier(tmp_path / "results", run.header.provenance.host, "host")
    ends_s = [max(t.ended_ns for t in trials if t.block == block) / 1e9 for block in (1, 2)]
    assert known[trials[0].cell] == pytest.approx(sum(ends_s) / 2, abs=0.2)
    assert known[trials[0].cell] > max(t.intended_ns for t in trials) / 2e9


def test_what_was_measured_before_is_not_measured_again():
    cell = Cell(address="it", workload="t0")
    found = expected(cell, {cell: 3.0}, blocks=2)
    assert (found.block_s, found.cells[0].measured) == (3.0, True)


def test_a_budget_says_how_many_blocks_fit():
    cell = Cell(address="it", workload="t0")
    assert expected(cell, {cell: 2.0}, budget_s=21.0).blocks == 9
    assert expected(cell, {cell: 2.0}, budget_s=1.0).blocks == 1
    assert expected(cell, {cell: 2.0}, budget_s=21.0, blocks=4).blocks == 4


def test_earlier_results_of_this_host_are_known_by_their_cells(tmp_path):
    plan = RolloutPlan(grids=(Grid(addresses=("fake",)),), reference="fake", blocks=2)
    run = excise.measure(plan=plan, out=tmp_path / "results" / "one")
    (tmp_path / "results" / "foreign").mkdir()
    host = run.header.provenance.host
    known = earlier(tmp_path / "results", host, "host")
    assert known.keys() == {Cell(address="fake", workload="t0")}
    assert earlier(tmp_path / "results", "another", "host") == {}
    assert earlier(tmp_path / "results", host, "another") == {}
    assert earlier(tmp_path / "nowhere", host, "host") == {}
    found = asyncio.run(measuring.dry_run(plan, earlier_in=tmp_path / "results"))
    assert [one.measured for one in found.forecast.cells] == [True]


def test_a_dry_run_says_who_is_left_out_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = RolloutPlan(grids=(Grid(addresses=("fake", "nosuch"), resets=("recreate", "git")),), reference="fake", blocks=2)
    found = asyncio.run(measuring.dry_run(plan))
    assert [cell.address for cell in found.plan.cells] == ["fake"]
    assert [(one.address, one.cell is None) for one in found.skipped] == [("nosuch", True), ("fake", False)]
    assert list(tmp_path.iterdir()) == []
