"""`excise project`: the paper's tables, results directories, and what cannot be projected."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from excise.meter.results import Writer
from synthetic_run import cell, make_run

EXCISE = str(Path(sys.executable).parent / "excise")


def excise(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EXCISE, *words], capture_output=True, env={**os.environ, **env}, check=False, timeout=60, text=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    run = make_run({cell("chroot"): (1, 1), cell("quick-start"): (100, 60), cell("quick-act"): (2000, 10)})
    path = tmp_path_factory.mktemp("results") / "run"
    with Writer(path, run.header) as writer:
        for trial in run._results.trials:
            writer.add(trial)
    return path


@pytest.mark.parametrize(
    ("words", "hours"),
    [
        (["--seconds", "1"], "278"),
        (["--per-action-ms", "10", "--actions", "150"], "417"),
        (["--per-action-ms", "100"], "4,167"),
        (["--seconds", "42.52", "--rollouts", "1e6"], "11,811"),
        (["--seconds", "23.382"], "6,495"),
    ],
)
def test_the_papers_tables_1_and_2(words, hours):
    shown = excise("project", *words)
    assert shown.returncode == 0, shown.stderr
    totals = shown.stdout.split("\n\n")[1]
    assert totals.splitlines()[1].split()[-1] == hours


def test_the_papers_difference():
    shown = excise("project", "--seconds", "42.52", "--seconds", "23.382").stdout
    assert "23.382 s instead of 42.52 s: 5,316 worker-hours less" in shown


def test_rows_with_intervals_workers_curves_and_break_even(results):
    shown = excise("project", str(results), "--actions", "150", "--rollouts", "1e6", "--deadline", "24h")
    assert shown.returncode == 0, shown.stderr
    parts = shown.stdout.split("\n\n")
    assert parts[0] == "1,000,000 rollouts of 150 actions, done in 24 h"
    assert parts[1].splitlines()[0].split() == ["s", "a", "rollout", "worker-hours", "workers"]
    assert "quick-act*" in parts[1]
    assert parts[1].count("..") == 9
    for factor in ("actions a rollout", "rollouts\n", "thinking", "in one sandbox", "fails"):
        assert f"{factor}" in shown.stdout
    assert "quick-act is cheaper than quick-start above " in shown.stdout
    assert "* composed: the trials had 4 actions" in shown.stdout
    assert "95 % interval" in shown.stdout


def test_json_has_the_same_numbers(results):
    found = json.loads(excise("project", str(results), "--actions", "4", "--json", "--deadline", "3d").stdout)
    assert [one["name"] for one in found] == ["chroot", "quick-start", "quick-act"]
    first = found[1]
    assert not first["projection"]["composed"]
    low, hours, high = (first["projection"]["hours"][end] for end in ("low", "value", "high"))
    assert low < hours < high
    assert hours == pytest.approx(first["projection"]["total_s"]["value"] * 1e6 / 3600)
    assert first["workers"]["value"] >= hours / 72
    assert {curve["factor"] for curve in first["sensitivity"]} == {"actions", "rollouts", "think_s", "reuse", "failure_rate"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "project either a results directory, or times"),
        (["--seconds", "1", "--deadline", "soon"], "'soon' is not a deadline: write 24h"),
        (["--seconds", "1", "--rollouts", "0"], "at least one rollout"),
        (["--seconds", "-1"], "a time is a number of 0 or more"),
        (["--seconds", "inf"], "a time is a number of 0 or more"),
        (["--seconds", "1", "--think", "nan"], "numbers of 0 or more"),
        (["--seconds", "1", "--failure-rate", "1"], "leaves no success"),
        (["--seconds", "1", "--reuse", "8"], "--reuse shares a start"),
        (["--seconds", "1", "--seconds", "2", "--per-action-ms", "3"], "as many --seconds as --per-action-ms"),
        (["nowhere"], "nowhere is not a results directory"),
    ],
)
def test_what_cannot_be_projected_is_one_sentence(words, said):
    done = excise("project", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_deadline_shorter_than_a_rollout_cannot_be_met():
    assert "none is enough" in excise("project", "--seconds", "120", "--deadline", "1m").stdout
