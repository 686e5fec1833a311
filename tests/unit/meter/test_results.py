import os
from pathlib import Path

import msgspec
import pytest

from excise.errors import SpecError
from excise.meter.packed import HEADER, TRIALS
from excise.meter.provenance import provenance
from excise.meter.records import Cell, Header, Plan, Quiet, Trial
from excise.meter.results import Writer, load, whole_blocks
from excise.substrate import Capabilities
from excise.trace import Span

CELLS = (Cell(address="a", workload="t0"), Cell(address="b", workload="t0"))


def header(tmp_path, run="r1"):
    return Header(
        id=run,
        started="now",
        plan=Plan(cells=CELLS, reference="a"),
        provenance=provenance(tmp_path, {"a": Capabilities(versions={"x": "1"})}),
    )


def trial(block, cell, run="r1", failure=None):
    spans = (Span("create", "s", 0, 5), Span("action", "s", 5, 9, "exec", guest_ns=2))
    quiet = Quiet(window_ns=1)
    return Trial(run=run, block=block, position=0, cell=cell, wall_ns=9, cpu_s=0.1, quiet=quiet, spans=spans, failure=failure)


def written(tmp_path, *trials):
    path = tmp_path / "out"
    with Writer(path, header(tmp_path)) as writer:
        for one in trials:
            writer.add(one)
    return path


def test_what_was_written_is_what_is_loaded(tmp_path):
    trials = (trial(0, CELLS[0]), trial(0, CELLS[1], failure="lost"))
    path = written(tmp_path, *trials)
    found = load(path)
    assert found.trials == trials
    assert found.header == header(tmp_path)


def test_every_trial_is_on_the_disk_when_it_is_over(tmp_path):
    path = tmp_path / "out"
    with Writer(path, header(tmp_path)) as writer:
        writer.add(trial(0, CELLS[0]))
        assert len(load(path).trials) == 1
        writer.add(trial(0, CELLS[1]))
        assert len(load(path).trials) == 2


def test_a_cut_last_line_is_left_out(tmp_path):
    path = written(tmp_path, trial(0, CELLS[0]), trial(0, CELLS[1]))
    whole = (path / TRIALS).read_bytes()
    for cut in (1, 20, len(whole) // 2 - 1):
        (path / TRIALS).write_bytes(whole[:-cut])
        assert load(path).trials == (trial(0, CELLS[0]),)


def test_damage_elsewhere_is_named(tmp_path):
    path = written(tmp_path, trial(0, CELLS[0]))
    (path / TRIALS).write_bytes(b"{}\n" + (path / TRIALS).read_bytes())
    with pytest.raises(SpecError, match=r"trials.jsonl line 1 is not a trial"):
        load(path)


def test_trials_of_another_run_are_never_pooled(tmp_path):
    path = written(tmp_path, trial(0, CELLS[0]), trial(0, CELLS[1], run="r2"))
    with pytest.raises(SpecError, match="line 2 is of run r2, not r1"):
        load(path)


def test_another_schema_is_refused_before_anything_is_read_wrongly(tmp_path):
    path = written(tmp_path)
    later = msgspec.json.decode((path / HEADER).read_bytes()) | {"schema": 99}
    (path / HEADER).write_bytes(msgspec.json.encode(later))
    with pytest.raises(SpecError, match="schema 99, this reads 2 and 3"):
        load(path)


def test_a_directory_without_results_is_named(tmp_path):
    with pytest.raises(SpecError, match="is not a results directory"):
        load(tmp_path)


def test_results_are_never_overwritten(tmp_path):
    path = written(tmp_path, trial(0, CELLS[0]))
    with pytest.raises(SpecError, match="in use already"), Writer(path, header(tmp_path)):
        pass
    assert len(load(path).trials) == 1


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SpecError, match=r"results cannot be written to .*name another directory"),
        Writer(tmp_path / "file" / "out", header(tmp_path)),
    ):
        pass


def test_a_full_disk_is_one_sentence(tmp_path):
    with Writer(tmp_path / "out", header(tmp_path)) as writer, Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), writer._descriptor)
        with pytest.raises(SpecError, match=r"No space left on device; name another directory"):
            writer.add(trial(0, CELLS[1]))


def test_only_blocks_with_a_trial_of_every_cell_are_whole(tmp_path):
    path = written(tmp_path, trial(0, CELLS[0]), trial(0, CELLS[1], failure="lost"), trial(1, CELLS[1]))
    assert load(path).whole_blocks() == (0,)


def test_a_block_is_whole_with_every_lane_and_a_rerun_stands_in_for_nobody(tmp_path):
    wide = msgspec.structs.replace(CELLS[0], concurrency=2)
    lanes = [msgspec.structs.replace(trial(block, wide), lane=lane) for block in (0, 1) for lane in (0, 1)]
    assert whole_blocks([wide], lanes) == (0, 1)
    assert whole_blocks([wide], lanes[:3]) == (0,)
    again = msgspec.structs.replace(lanes[3], rerun=True)
    assert whole_blocks([wide], [*lanes[:3], again]) == (0,)
