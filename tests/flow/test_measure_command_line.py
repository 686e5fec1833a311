"""`excise measure` as a user meets it: plans, dry runs, interruptions, the background, somebody else's results."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from excise.meter.results import load

EXCISE = str(Path(sys.executable).parent / "excise")
GOLDEN = Path(__file__).parents[1] / "unit/meter/golden"
PLAN = """
kind = "rollout"
reference = "local"
blocks = {blocks}
[[grids]]
addresses = ["local", "fake?action_s={action_s}", "nosuch"]
workloads = ["t0?actions=2"]
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return written(tmp_path)


def written(tmp_path: Path, blocks: int = 2, action_s: float = 0.001) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(PLAN.format(blocks=blocks, action_s=action_s))
    return str(path)


def measure(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    argv = [EXCISE, "measure", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL)


def test_a_plan_of_ones_own_skips_what_is_not_here_and_measures_the_rest(plan: str, tmp_path: Path) -> None:
    done = measure("--plan", plan, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nosuch" in done.stdout
    results = load(tmp_path / "out")
    assert results.header.plan.name == "mine"
    assert len(results.whole_blocks()) == 3


def test_addresses_narrow_a_plan_and_one_that_cannot_run_is_a_failure(plan: str, tmp_path: Path) -> None:
    done = measure("local", "--plan", plan, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {cell.address for cell in load(tmp_path / "out").header.plan.cells} == {"local"}
    assert measure("docker", "--plan", plan, cwd=tmp_path).stderr.startswith("excise: the plan has no cell of docker")


def test_a_dry_run_prints_cells_and_time_and_writes_nothing(plan: str, tmp_path: Path) -> None:
    done = measure("--plan", plan, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^local, t0\?actions=2 +\d+\.\d\d s ~$", done.stdout, re.MULTILINE)
    assert re.search(r"2 cells, .* s a block; 2 blocks after 1 to warm up, about \d+ s\.", done.stdout)
    assert "Skipped nosuch: no substrate is called 'nosuch'" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--plan", "nosuch"], "there is no plan 'nosuch'; the package has: bench"),
        (["--plan", "bench", "--workload", "t0"], "take no workload"),
        (["--resume", "nowhere"], "is not a results directory"),
        (["--resume", str(GOLDEN / "3"), "--blocks", "3"], "leave --blocks out"),
        (["--resume", str(GOLDEN / "2"), "local"], "leave local out"),
        (["--like", str(GOLDEN / "2"), "--plan", "quick"], "leave --plan out"),
        (["--like", "nowhere"], "is not a results directory"),
        (["--control", "nowhere"], "is not a results directory"),
        (["--control", str(GOLDEN / "3"), "--image", "host", "local"], "leave --image, local out"),
        (["--control", str(GOLDEN / "3"), "--detach"], "leave --dry-run and --detach out"),
        (["smoke"], "smoke is a plan, not a substrate: write --plan smoke"),
        (["--detach", "--plan", "nosuch"], "there is no plan 'nosuch'"),
        (["--detach", "--resume", "nowhere"], "is not a results directory"),
    ],
)
def test_a_wrong_request_is_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = measure(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("excise: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_whole_blocks_and_says_how_to_go_on(tmp_path: Path) -> None:
    plan, out = written(tmp_path, blocks=100000, action_s=0.01), tmp_path / "out"
    argv = [EXCISE, "measure", "--plan", plan, "--out", "out"]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        _wait_for_lines(out / "trials.jsonl", 6, running)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "whole blocks of t0?actions=2" in stdout
    assert "`excise measure --resume out` goes on" in stderr
    assert len(load(out).whole_blocks()) >= 3


def _wait_for_lines(path: Path, count: int, running: "subprocess.Popen[str]") -> None:
    """Until the run has written so many trials; its end would be the test's."""
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        try:
            running.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended early: {running.communicate()}")
    raise AssertionError("it wrote nothing")


def test_a_detached_run_says_how_to_follow_it_and_leaves_results_and_a_log(plan: str, tmp_path: Path) -> None:
    done = measure("--plan", plan, "--detach", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"as process (\d+); `tail -f (\S+)` follows it", done.stderr)
    assert found is not None
    _wait_for_end(int(found[1]))
    log = tmp_path / found[2]
    assert log == tmp_path / "out" / "measure.log"
    assert "whole blocks of t0?actions=2" in log.read_text()
    assert len(load(tmp_path / "out").whole_blocks()) == 3


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], 60)
    finally:
        os.close(descriptor)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the run in the background did not end")


def test_somebody_elses_run_is_repeated_and_ratios_stand_beside_theirs(plan: str, tmp_path: Path) -> None:
    assert measure("--plan", plan, "--blocks", "6", "--out", "theirs", cwd=tmp_path).returncode == 0
    done = measure("--like", "theirs", "--blocks", "6", "--out", "ours", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^fake\?action_s=0\.001, t0\?actions=2 / local +[\d.]+ \([\d.]+ to [\d.]+\) +[\d.]+ \(.*\) +(agrees|differs)$",
        done.stdout,
        re.MULTILINE,
    )
    ours, theirs = load(tmp_path / "ours"), load(tmp_path / "theirs")
    assert ours.header.plan.cells == theirs.header.plan.cells
    assert ours.header.id != theirs.header.id


def test_a_workload_that_fails_everywhere_is_a_failure_and_the_other_cells_go_on(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('image = "host"\ncommands = ["exit 3"]\n')
    plan = 'kind = "rollout"\nimage = "host"\nblocks = 1\n[[grids]]\naddresses = ["local"]\nworkloads = ["t0", "wrong.toml"]\n'
    (tmp_path / "two.toml").write_text(plan)
    done = measure("--plan", "two.toml", "--reference", "local", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "excise: no trial succeeded of local on wrong.toml" in done.stderr
    failures = [trial.failure for trial in load(tmp_path / "out").trials if not trial.warmup]
    assert sorted(one is None for one in failures) == [False, True]
