"""`excise compare`: a gate that noise does not close and a slower build does."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from excise.meter.latency_records import LatencyCell, LatencyHeader, LatencyPlan, LatencyTrial
from excise.meter.results import Writer
from synthetic_run import ORIGIN, cell, make_run

EXCISE = str(Path(sys.executable).parent / "excise")
LINES = {cell("chroot"): (1, 1), cell("docker"): (300, 50), cell("docker+guest"): (310, 2)}


def excise(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EXCISE, "compare", *words], capture_output=True, env={**os.environ, **env}, check=False, timeout=60, text=True
    )


def saved(path, run, trials=None):
    with Writer(path, run.header) as writer:
        for trial in run._results.trials if trials is None else trials:
            writer.add(trial)
    return str(path)


@pytest.fixture
def before(tmp_path):
    return saved(tmp_path / "before", make_run(LINES))


def slower_host(run, factor=3):
    """Everything takes longer, for everybody."""
    return [
        msgspec.structs.replace(
            trial,
            wall_ns=trial.wall_ns * factor,
            spans=tuple(
                msgspec.structs.replace(
                    span,
                    start_ns=span.start_ns * factor,
                    end_ns=span.end_ns * factor,
                    guest_ns=None if span.guest_ns is None else span.guest_ns * factor,
                )
                for span in trial.spans
            ),
        )
        for trial in run._results.trials
    ]


def test_the_same_on_a_host_a_third_as_fast_is_no_change(before, tmp_path):
    run = make_run(LINES)
    done = excise(before, saved(tmp_path / "after", run, slower_host(run)))
    assert done.returncode == 0, done.stdout
    assert "Nothing got slower" in done.stdout
    assert "absolute times are not compared" in done.stdout
    assert done.stdout.count("1.00") == 6


def test_a_dispatch_that_got_slower_stops_the_build(before, tmp_path):
    after = saved(tmp_path / "after", make_run(LINES | {cell("docker"): (300, 75)}))
    done = excise(before, after)
    assert done.returncode == 1
    slower = [line.split()[:4] for line in done.stdout.splitlines() if line.endswith("slower")]
    assert slower == [["docker", "on", "t0", "total"], ["docker", "on", "t0", "action"]]
    assert "the whole 95 % interval is above 1.1" in done.stdout
    assert excise(before, after, "--threshold", "2").returncode == 0
    back = excise(after, before)
    assert back.returncode == 0
    assert "faster" in back.stdout


def test_a_change_within_its_noise_does_not(before, tmp_path):
    after = saved(tmp_path / "after", make_run(LINES | {cell("docker"): (300, 56)}))
    done = excise(before, after)
    assert done.returncode == 0
    assert "unsure" in done.stdout
    assert "nobody can tell yet" in done.stdout


def test_what_never_succeeds_any_more_is_broken(before, tmp_path):
    run = make_run(LINES)
    trials = [
        msgspec.structs.replace(trial, failure="lost") if trial.cell.address == "docker" else trial
        for trial in run._results.trials
    ]
    done = excise(before, saved(tmp_path / "after", run, trials))
    assert done.returncode == 1
    assert "broken" in done.stdout


def test_rows_of_one_run_only_are_named(before, tmp_path):
    after = saved(tmp_path / "after", make_run({**LINES, cell("podman"): (300, 50)}))
    assert "Only in the second run: podman on t0." in excise(before, after).stdout


def test_the_step_summary_is_appended_to(before, tmp_path):
    after = saved(tmp_path / "after", make_run(LINES | {cell("docker"): (300, 75)}))
    summary = tmp_path / "summary.md"
    summary.write_text("what was there\n")
    assert excise(before, after, "--github", GITHUB_STEP_SUMMARY=str(summary)).returncode == 1
    text = summary.read_text()
    assert text.startswith("what was there\n### after against before\n\n| what | number |")
    assert "| docker on t0 | action | " in text
    assert "**slower**" in text


def test_two_addresses_of_one_run(before):
    done = excise(before, "--from", "docker", "--to", "docker+guest")
    assert done.returncode == 0, done.stderr
    assert "faster" in done.stdout
    assert excise(before, "--from", "docker+guest", "--to", "docker").returncode == 1


def latencies(path, ratio, blocks=10):
    cells = (LatencyCell(address="namespace", operation="exec"), LatencyCell(address="docker", operation="exec"))
    header = LatencyHeader(
        id="r", started="x", plan=LatencyPlan(cells=cells, blocks=blocks), privileged=True, provenance=ORIGIN
    )
    with Writer(path, header) as writer:
        for block in range(blocks + 2):
            for at, own in zip(cells, (1.0, 20.0), strict=True):
                floor = [1000 + 10 * block + i for i in range(20)]
                took = tuple(round(own * ratio * f * (1 + 0.01 * (block % 3))) for f in floor)
                trial = LatencyTrial(
                    run="r", block=block, position=0, cell=at, warmup=block < 2, took_ns=took, floor_ns=tuple(floor)
                )
                writer.add(trial)
    return str(path)


def test_single_operations_are_compared_by_their_floor(tmp_path):
    one, two = latencies(tmp_path / "a", 2.0), latencies(tmp_path / "b", 2.5)
    done = excise(one, two)
    assert done.returncode == 1
    assert "namespace exec" in done.stdout
    assert "in units of the floor" in done.stdout
    assert excise(one, one).returncode == 0
    assert excise(one, "--from", "namespace", "--to", "docker").returncode == 1


def test_what_cannot_be_compared_is_one_sentence(before, tmp_path):
    few = saved(tmp_path / "few", make_run(LINES, blocks=4))
    other = saved(tmp_path / "other", make_run({cell("local"): (1, 1), cell("docker"): (300, 50)}, reference="local"))
    apart = saved(tmp_path / "apart", make_run({cell("chroot"): (1, 1), cell("runc"): (30, 5)}))
    wrong = [
        ([before], "compare two results directories, or one with --from"),
        ([before, before, "--to", "docker"], "compare two results directories, or one with --from"),
        ([before, few], "measure at least 6 blocks"),
        ([before, other], "measure both with the same --reference"),
        ([before, apart], "no cell in common"),
        ([before, latencies(tmp_path / "l", 1.0)], "only the same kind can be compared"),
        ([before, before, "--threshold", "0.9"], "give one above 1"),
        ([before, before, "--github"], "GITHUB_STEP_SUMMARY"),
        ([before, "--from", "docker", "--to", "nobody"], "nobody is not in this run"),
        ([before, str(tmp_path / "nowhere")], "is not a results directory"),
    ]
    for words, said in wrong:
        done = excise(*words, GITHUB_STEP_SUMMARY="")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (words, done.stderr)
        assert said in done.stderr
