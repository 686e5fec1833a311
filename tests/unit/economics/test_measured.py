import json
from pathlib import Path

import msgspec
import pytest

from excise.economics.measured import newest, read
from excise.errors import SpecError
from excise.meter.records import Declared
from excise.meter.results import Writer
from made_pools import made_pool_header, made_pool_trials, warm_cells
from made_results import ORIGIN, plain_cells, write

DENSITY = {
    "kind": "density",
    "host": "0123456789ab",
    "memory_bytes": 8 << 30,
    "addresses": [
        {
            "address": "docker",
            "runs": [
                {"sandboxes": 4, "available_kib_each": 9000.0, "pss_kib_each": 1.0},
                {"sandboxes": 16, "available_kib_each": 5000.0, "pss_kib_each": 1.0},
            ],
            "slope_kib": 4096.0,
        }
    ],
}
OBSERVED = {"kind": "observe", "host": "x", "addresses": [{"address": "docker", "seen": {"its load": True, "files": None}}]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path / "run", plain_cells())
    with Writer(tmp_path / "warm", made_pool_header(warm_cells(), "warm")) as writer:
        for trial in made_pool_trials(warm_cells(), 8):
            writer.add(trial)
    (tmp_path / "density.json").write_text(json.dumps(DENSITY))
    (tmp_path / "observe.json").write_text(json.dumps(OBSERVED))
    (tmp_path / "other.json").write_text('{"addresses": ["a"], "runs": 3}')
    return tmp_path


def test_a_directory_of_results_is_read_whole(results: Path) -> None:
    found = read([results])
    assert [run.path.name for run in found.runs] == ["run"]
    assert len(found.claims) == 1
    assert found.weighed["docker"].each_bytes == 4096 * 1024
    assert found.weighed["docker"].most == 16
    assert found.observed["docker"].seen == {"its load": True, "files": None}
    assert set(found.undeclared()) == set(found.addresses)


def test_what_runs_recorded_of_isolation_is_known(tmp_path: Path) -> None:
    said = {"docker": Declared(kernel="shared", isolates=("files",))}
    write(tmp_path / "run", plain_cells(), origin=msgspec.structs.replace(ORIGIN, declared=said))
    found = read([tmp_path / "run"])
    assert found.declared == said
    assert "docker" not in found.undeclared()


def test_no_results_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no whole measured block of rollouts.*excise measure --plan isolation"):
        read([tmp_path])
    with pytest.raises(SpecError, match=r"neither a results directory nor a file.*excise measure"):
        read([tmp_path / "absent"])
    with pytest.raises(SpecError, match=r"no results of this host in .*excise measure --plan isolation"):
        newest(tmp_path, "0123456789ab")


def test_by_default_only_this_hosts_results_are_read(results: Path) -> None:
    stranger = msgspec.structs.replace(ORIGIN, host="ffffffffffff")
    write(results / "stranger", plain_cells(), origin=stranger)
    assert [run.path.name for run in newest(results, ORIGIN.host).runs] == ["run"]
    with pytest.raises(SpecError, match=r"no results of this host"):
        newest(results, "nobody")


def test_two_hosts_are_never_put_side_by_side(results: Path) -> None:
    write(results / "stranger", plain_cells(), origin=msgspec.structs.replace(ORIGIN, host="ffffffffffff"))
    with pytest.raises(SpecError, match=r"2 hosts"):
        read([results])


def test_results_of_another_host_are_read_and_said_to_be(results: Path) -> None:
    assert read([results / "run"], host="another").foreign
    assert not read([results / "run"], host=ORIGIN.host).foreign


def test_what_is_not_told_from_nothing_weighs_nothing_known(tmp_path: Path) -> None:
    noisy = json.loads(json.dumps(DENSITY))
    noisy["addresses"][0]["slope_kib"] = -12.0
    (tmp_path / "density.json").write_text(json.dumps(noisy))
    write(tmp_path / "run", plain_cells())
    assert read([tmp_path]).weighed["docker"].each_bytes is None


def test_a_damaged_density_file_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "run", plain_cells())
    (tmp_path / "density.json").write_text('{"kind": "density", "addresses": [{"address": 3}]}')
    with pytest.raises(SpecError, match=r"density.json is damaged"):
        read([tmp_path])


def test_the_committed_density_is_read() -> None:
    committed = Path(__file__).parents[3] / "docs/results"
    found = read([committed / "paper", committed / "namespace/density.json"])
    assert found.weighed["namespace"].most == 3000
