# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOptionalMemberAccess=false

"""Results outlive the program that wrote them: every version's golden file must always load."""

from pathlib import Path

import msgspec
import pytest

from excise.errors import SpecError
from excise.meter.pool_records import POOL_SCHEMA
from excise.meter.records import READABLE, SCHEMA, Cell
from excise.meter.results import load, load_pools, scan
from excise.meter.schema import text
from excise.stats.run import Run

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", READABLE)
def test_every_version_still_loads(version):
    found = load(GOLDEN / str(version))
    assert found.header.schema == version
    assert found.trials
    assert found.whole_blocks()


def test_there_is_a_golden_file_of_this_version():
    assert READABLE[-1] == SCHEMA
    assert load(GOLDEN / str(SCHEMA)).header.schema == SCHEMA


def test_what_schema_2_did_not_say_is_what_it_did():
    cell = load(GOLDEN / "2").trials[0].cell
    assert (cell.state, cell.shell, cell.reset, cell.concurrency, cell.think_s) == ("warm", "exec", "recreate", 1, 0.0)
    assert cell.factors() == {}


def test_a_compressed_bundle_has_its_factors_lanes_and_reruns():
    found = load(GOLDEN / "3")
    assert [(t.cell.concurrency, t.lane, t.noisy, t.rerun) for t in found.trials] == [
        (1, 0, False, False),
        (2, 0, True, False),
        (2, 1, True, False),
        (2, 0, False, True),
        (2, 1, False, True),
    ]
    assert found.trials[1].cell.factors() == {"shell": "session", "reset": "git", "concurrency": "2", "think": "0.5 s"}
    assert found.header.skipped[1].cell == Cell(address="docker", workload="t0", state="cold")


def test_a_set_up_arrivals_and_a_control_block_are_read_back():
    found = load(GOLDEN / "4")
    assert found.whole_blocks() == (0,)
    arrived = [t for t in found.trials if t.cell.arrivals_per_s and not t.control]
    assert arrived[0].cell.factors() == {"arrivals": "2", "rate": "4/s"}
    assert [(t.lane, t.intended_ns) for t in arrived] == [(0, 364507124), (1, 445883849)]
    assert {t.block for t in found.trials if t.control} == {1}
    assert [span.name for span in arrived[0].spans] == ["create", "ready", "setup", "action", "action", "cleanup"]
    rows = Run(found).rows
    assert [round(row.setup_s.value * 1e3, 3) for row in rows] == [2.5, 43, 43]


def test_claims_are_read_back():
    header, trials = load_pools(GOLDEN / f"pool-{POOL_SCHEMA}")
    assert header.kind == "pool"
    assert {trial.cell for trial in trials} == set(header.plan.cells)
    assert [cell.mode for cell in header.plan.cells] == ["none", "exact", "closest"]
    seen = {trial.cell.mode: trial for trial in trials}
    assert [claim.hit for claim in seen["none"].claims] == [""] * 6
    assert {claim.hit for claim in seen["closest"].claims} <= {"deps", "sibling", "miss"}
    same = {tuple((claim.task, claim.intended_ns) for claim in trial.claims) for trial in trials}
    assert len(same) == 1
    assert seen["exact"].figures["count_cap"] == 50
    assert seen["exact"].cpu_s > 0
    assert seen["exact"].lead_cpu_s > 0


def test_before_schema_4_set_up_is_part_of_start():
    assert all(row.setup_s is None for row in Run(load(GOLDEN / "3")).rows)


def test_published_results_load():
    assert load(ROOT / "docs/results/seam/t0").whole_blocks()


def test_defaults_are_not_written():
    assert msgspec.json.encode(Cell(address="a", workload="t0")) == b'{"address":"a","workload":"t0"}'


def test_a_damaged_bundle_is_named(tmp_path):
    (tmp_path / "run.json").write_bytes((GOLDEN / "3/run.json").read_bytes())
    (tmp_path / "trials.jsonl.gz").write_bytes((GOLDEN / "3/trials.jsonl.gz").read_bytes()[:-200])
    _, trials = scan(tmp_path)
    with pytest.raises(SpecError, match="is damaged"):
        list(trials)


def test_the_published_json_schema_is_current():
    assert (ROOT / f"docs/schema/results-{SCHEMA}.json").read_text() == text()
