"""A run that is given away: the same trials, in parts, and none of them lost without a word."""

import gzip
import shutil

import pytest

from excise.errors import SpecError
from excise.meter.packed import pack
from excise.meter.results import load
from made_results import plain_cells, write


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", plain_cells(("chroot", "docker")), blocks=3)


def test_a_bundle_holds_the_same_trials(run, tmp_path):
    files = [file.name for file in pack(run, tmp_path / "out")]
    assert files == ["run.json", "trials.jsonl.gz"]
    assert load(tmp_path / "out").trials == load(run).trials


def test_a_large_run_is_packed_in_parts_that_load_in_order(run, tmp_path):
    files = pack(run, tmp_path / "out", part_bytes=9000)
    assert [file.name for file in files][1] == f"trials-01-of-0{len(files) - 1}.jsonl.gz"
    assert len(files) > 3
    assert load(tmp_path / "out").trials == load(run).trials
    again = pack(tmp_path / "out", tmp_path / "again", part_bytes=9000)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


@pytest.mark.parametrize("lost", [1, 2, -1])
def test_a_part_that_is_missing_is_told(run, tmp_path, lost):
    pack(run, tmp_path / "out", part_bytes=9000)[lost].unlink()
    with pytest.raises(SpecError, match="parts of trials"):
        load(tmp_path / "out")


def test_a_last_line_that_was_cut_off_is_not_packed(run, tmp_path):
    with (run / "trials.jsonl").open("ab") as file:
        file.write(b'{"run": "half')
    pack(run, tmp_path / "out")
    assert gzip.decompress((tmp_path / "out/trials.jsonl.gz").read_bytes()).endswith(b"}\n")


def test_an_earlier_bundle_is_replaced_and_anything_else_is_refused(run, tmp_path):
    pack(run, tmp_path / "out", part_bytes=9000)
    pack(run, tmp_path / "out")
    assert load(tmp_path / "out").trials == load(run).trials
    shutil.copyfile(run / "trials.jsonl", tmp_path / "out/trials.jsonl")
    with pytest.raises(SpecError, match="something else"):
        pack(run, tmp_path / "out")
    with pytest.raises(SpecError, match="something else"):
        pack(run, run)


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(SpecError, match="not a results directory"):
        pack(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
