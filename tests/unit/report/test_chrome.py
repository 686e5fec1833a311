"""Trials as Chrome trace events."""

import msgspec
import pytest

from excise.cli.entry import main
from excise.errors import SpecError
from excise.meter.results import load
from excise.report.chrome import chosen, events
from made_results import plain_cells, write


@pytest.fixture
def results(tmp_path):
    return write(tmp_path / "r", plain_cells(("chroot", "docker")), blocks=2, failing="docker")


def test_each_span_is_a_complete_event_at_its_own_time(results):
    trials = load(results).trials
    one = next(trial for trial in trials if (trial.block, trial.cell.address) == (1, "chroot"))
    found = events(chosen(iter(trials), "1:chroot"))["traceEvents"]
    complete = [event for event in found if event["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in complete] == [(s.start_ns / 1e3, s.duration_ns / 1e3) for s in one.spans]
    assert complete[0]["name"] == "create"
    assert {e["name"] for e in complete if e["cat"] == "action"} == {
        "action exec",
        "action shell",
        "action write",
        "action read",
    }
    inside = [e["args"]["inside_us"] for e in complete if e["cat"] == "action"]
    assert inside == [(span.guest_ns or 0) / 1e3 for span in one.spans if span.name == "action"]


def test_the_instruments_spans_are_on_a_line_of_their_own(results):
    found = events(chosen(iter(load(results).trials), "1:docker"))["traceEvents"]
    lines = {event["cat"]: event["tid"] for event in found if event["ph"] == "X"}
    assert lines["null"] != lines["action"] == lines["create"]


def test_a_block_has_a_process_for_each_trial_and_failures_are_marked(results):
    found = events(chosen(iter(load(results).trials), "0"))["traceEvents"]
    titles = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert titles == ["chroot t0, block 0", "docker t0, block 0"]
    assert [event["name"] for event in found if event["ph"] == "i"] == ["failed: SandboxLost: the daemon closed the connection"]


@pytest.mark.parametrize(
    ("asked", "sentence"), [("x", "names no trial"), ("9", "there are 0 to 2"), ("1:runc", "no trial of 'runc'")]
)
def test_what_is_not_there_is_said(results, asked, sentence):
    with pytest.raises(SpecError, match=sentence):
        chosen(iter(load(results).trials), asked)


def test_the_command_writes_json(results, tmp_path, capsys):
    out = tmp_path / "trace.json"
    assert main(["report", str(results), "--trace", "1:docker", "-o", str(out)]) == 0
    assert len(msgspec.json.decode(out.read_bytes())["traceEvents"]) > 20
    assert main(["report", str(results), "--trace", "1:docker"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["displayTimeUnit"] == "ms"
