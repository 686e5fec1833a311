"""Results outlive the program that wrote them: every version's golden file must always load."""

from pathlib import Path

import msgspec
import pytest

from excise.errors import SpecError
from excise.meter.records import READABLE, SCHEMA, Cell
from excise.meter.results import load, scan
from excise.meter.schema import text

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
