# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOptionalMemberAccess=false

"""A run goes on after any interruption, and only where it may."""

import asyncio
import shutil

import msgspec
import pytest

import excise
from excise import measuring
from excise.errors import SpecError
from excise.meter.packed import HEADER, TRIALS
from excise.meter.results import Writer, load
from excise.meter.resume import interrupted
from excise.plans import Grid, RolloutPlan

PLAN = RolloutPlan(grids=(Grid(addresses=("fake", "fake?seed=2")),), reference="fake", blocks=4, image="host")


@pytest.fixture(autouse=True)
def _one_code(monkeypatch):
    """Whoever edits the source while the tests run has changed the code, and resuming would rightly be refused."""
    monkeypatch.setattr("excise.meter.provenance._code", lambda: "sha256:this")


@pytest.fixture
def cut(tmp_path):
    """A run of two cells that was cut off in its third block, in the midst of a line."""
    path = tmp_path / "run"
    excise.measure(plan=PLAN, out=path)
    lines = (path / TRIALS).read_bytes().splitlines(keepends=True)
    (path / TRIALS).write_bytes(b"".join(lines[:5]) + lines[5][:100])
    return path


def resumed(path, tell=lambda _: None):
    return asyncio.run(measuring.resume(path, tell=tell))


def test_a_resumed_run_has_as_many_whole_blocks_as_were_asked_for(cut):
    before = load(cut)
    assert before.whole_blocks() == (0, 1)
    told = []
    run = resumed(cut, told.append)
    assert run.blocks == 4
    after = load(cut)
    assert after.header == before.header
    assert after.trials[:5] == before.trials
    # The block that was cut off is not gone on with: its two halves would not be beside each other.
    assert after.whole_blocks() == (0, 1, 3, 4, 5, 6)
    assert [trial.warmup for trial in after.trials if trial.block == 3] == [True, True]
    assert told[0].blocks == told[-1].block + 1 == 7


def test_a_run_that_was_cut_off_before_its_first_trial_goes_on(cut):
    (cut / TRIALS).write_bytes(b'{"run":"')
    assert resumed(cut).blocks == 4


def test_a_run_that_is_complete_is_left_as_it_is(tmp_path):
    path = tmp_path / "run"
    excise.measure(plan=PLAN, out=path)
    before = (path / TRIALS).read_bytes()
    assert resumed(path).blocks == 4
    assert (path / TRIALS).read_bytes() == before


def test_a_budget_that_is_used_up_stays_used_up(tmp_path):
    path = tmp_path / "run"
    excise.measure(plan=msgspec.structs.replace(PLAN, blocks=None, budget_s=0.3), out=path)
    assert interrupted(path).done.elapsed_s > 0.1
    before = load(path).whole_blocks()
    resumed(path)
    assert len(load(path).whole_blocks()) <= len(before) + 3


def changed(path, **changes):
    header = msgspec.json.decode((path / HEADER).read_bytes())
    header["provenance"].update(changes)
    (path / HEADER).write_bytes(msgspec.json.encode(header))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host": "another"}, "another host .*--like .* repeats it here"),
        ({"code": "sha256:0"}, "other code than this: go on with the excise that began it"),
        ({"kernel": "Linux 1.0"}, "begin a new run"),
    ],
)
def test_another_host_kernel_or_code_is_refused_and_nothing_is_lost(cut, changes, sentence):
    changed(cut, **changes)
    before = (cut / TRIALS).read_bytes()
    with pytest.raises(SpecError, match=sentence):
        resumed(cut)
    assert (cut / TRIALS).read_bytes() == before


def test_a_substrate_that_cannot_run_any_more_is_refused(cut):
    header = msgspec.json.decode((cut / HEADER).read_bytes())
    for cell in header["plan"]["cells"]:
        cell["address"] = cell["address"].replace("fake?seed=2", "fake?fail_create=1")
    (cut / HEADER).write_bytes(msgspec.json.encode(header))
    with pytest.raises(SpecError, match=r"cannot run now .*begin a new run"):
        resumed(cut)


def test_two_may_not_write_to_one_run(cut):
    with Writer(cut, load(cut).header, go_on=True), pytest.raises(SpecError, match="written by another excise"):
        resumed(cut)


def test_a_sandbox_of_an_earlier_part_is_a_used_one_in_a_later_part(cut):
    lines = [msgspec.json.decode(line) for line in (cut / TRIALS).read_bytes().splitlines()[:5]]
    lines[0]["identity"] = "0123"
    (cut / TRIALS).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert interrupted(cut).used == {"0123"}


def test_a_compressed_bundle_says_how_to_go_on(cut, tmp_path):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    shutil.copy(cut / HEADER, bundle / HEADER)
    (bundle / "trials.jsonl.gz").write_bytes(b"")
    with pytest.raises(SpecError, match="gunzip"):
        interrupted(bundle)
