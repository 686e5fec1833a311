"""Latency runs: what is sampled, what is checked, and what the table says of it."""

import asyncio
from collections.abc import Sequence

import pytest

from excise.api import measure_latencies
from excise.errors import SpecError
from excise.meter.admission import Admitted
from excise.meter.latency import Floor, run_latencies
from excise.meter.latency_records import LatencyCell, LatencyPlan, LatencyTrial
from excise.meter.latency_samples import OtherWork
from excise.meter.null import NullSubstrate
from excise.meter.results import load_latencies
from excise.plans import load
from excise.report.latency import table
from excise.stats.latency import ratio, rows
from excise.substrate import Capabilities
from excise.substrates.fake import FakeSubstrate

EXEC = LatencyCell(address="ours", operation="exec", samples=3)
OTHER = LatencyCell(address="theirs", operation="exec", samples=3)
PLAN = """
kind = "latency"
image = "host"
blocks = 6
warmup_blocks = 1
[limits]
pids = 100
[[cells]]
address = "local"
operation = "create"
samples = 2
[[cells]]
address = "local"
operation = "exec"
tight = true
samples = 2
[[cells]]
address = "local"
operation = "session"
samples = 2
[[cells]]
address = "nonsense"
operation = "exec"
"""


def trials(cell: LatencyCell, took: Sequence[int], floor: int = 100, failure: str | None = None) -> list[LatencyTrial]:
    return [
        LatencyTrial(run="r", block=n, position=0, cell=cell, took_ns=(t, t, 9 * t), floor_ns=(floor,) * 3, failure=failure)
        for n, t in enumerate(took)
    ]


def test_the_bench_plan_is_one_of_latencies():
    assert isinstance(load("bench"), LatencyPlan)


def test_a_plan_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SpecError, match="bench"):
        load("nosuch")


def test_a_plan_with_an_unknown_field_is_refused(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN + "nonce = 3\n")
    with pytest.raises(SpecError, match="nonce"):
        load(str(path))


def test_the_ratio_to_the_floor_is_that_of_the_blocks_medians():
    (row,) = rows(trials(EXEC, [120, 130, 110, 125, 115, 120]))
    assert row.n == 18
    assert row.to_floor is not None
    assert row.to_floor.value == pytest.approx(1.2)
    assert row.to_floor.low is not None
    assert row.to_floor.low < 1.2


def test_rows_compare_in_blocks_that_have_both():
    both = [*trials(EXEC, [100] * 7), *trials(OTHER, [300] * 6)]
    found = ratio(both, OTHER, EXEC)
    assert found is not None
    assert found.value == pytest.approx(3.0)


def test_a_failed_trial_is_told_and_has_no_samples_in_the_row():
    (row,) = rows([*trials(EXEC, [100] * 6), *trials(EXEC, [10**9], failure="lost")])
    assert row.failures == (("lost", 1),)
    assert row.n == 18


def test_warm_ups_are_kept_and_not_counted():
    warm = [LatencyTrial(run="r", block=0, position=0, cell=EXEC, warmup=True, took_ns=(9,), floor_ns=(1,))]
    assert rows(warm) == ()


def test_an_answer_without_its_nonce_is_a_failure():
    plan = LatencyPlan(cells=(LatencyCell(address="null", operation="exec", samples=1),), blocks=1, warmup_blocks=0)
    kept: list[LatencyTrial] = []
    admitted = {"null": Admitted(substrate=NullSubstrate(), capabilities=Capabilities())}
    asyncio.run(run_latencies(plan, admitted, Floor("/bin/echo"), "r", kept.append))
    assert kept[0].failure is not None
    assert "nonce" in kept[0].failure


def test_a_floor_that_fails_is_no_floor():
    with pytest.raises(OtherWork):
        Floor("/bin/false")()


def test_a_run_from_plan_to_table(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    header, found = asyncio.run(measure_latencies(str(path), out=tmp_path / "out"))
    assert load_latencies(tmp_path / "out") == (header, found)
    assert [one.address for one in header.skipped] == ["nonsense"]
    assert not [trial.failure for trial in found if trial.failure]
    assert len(found) == 7 * 3
    text = table(header, found)
    assert "exec, in a row" in text
    assert "nonsense was not measured" in text


def test_states_are_measured_in_a_sandbox_that_is_changed_again_each_time():
    names = ("reset", "reset-answer", "snapshot", "snapshot-live", "fork-8")
    plan = LatencyPlan(
        cells=tuple(LatencyCell(address="fake", operation=name, samples=2) for name in names),
        blocks=1,
        warmup_blocks=0,
    )
    substrate = FakeSubstrate()
    kept: list[LatencyTrial] = []

    async def run() -> None:
        admitted = {"fake": Admitted(substrate=substrate, capabilities=await substrate.probe())}
        await run_latencies(plan, admitted, Floor("/bin/echo"), "r", kept.append)
        assert await substrate.list({}) == ()
        assert substrate._snapshots == {}

    asyncio.run(run())
    assert [trial.failure for trial in kept] == [None] * 5
    assert {trial.cell.operation: len(trial.took_ns) for trial in kept} == dict.fromkeys(names, 2)
    assert {trial.cell.operation: len(trial.close_ns) for trial in kept}["fork-8"] == 2
    assert [row.cell.operation for row in rows(kept)] == list(names)
