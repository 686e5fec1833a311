"""What the model predicts of committed results that were held out, against what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from excise.economics.held_out import held_out
from excise.stats.run import Run
from synthetic_run import cell, make_run

ROOT = Path(__file__).parents[3]
COMMITTED = json.loads((ROOT / "docs/results/advise/held_out.json").read_text())


@pytest.fixture(scope="module")
def paper() -> Run:
    return Run.read(ROOT / "docs/results/paper")


def test_the_committed_errors_are_those_of_the_committed_results() -> None:
    argv = [sys.executable, "bench/advise_held_out.py", "--check"]
    assert subprocess.run(argv, cwd=ROOT, check=False, timeout=60).returncode == 0, (
        "run python bench/advise_held_out.py --write"
    )


def test_the_table_of_isolation_and_economics_is_that_of_the_committed_results() -> None:
    argv = [sys.executable, "bench/economics_page.py", "--check"]
    assert subprocess.run(argv, cwd=ROOT, check=False, timeout=60).returncode == 0, "run python bench/economics_page.py"


def test_t1_is_predicted_from_the_decomposition_of_t0_within_a_fifth(paper: Run) -> None:
    found = held_out(paper, "t0", "t1")
    assert {one.address for one in found} >= {"namespace", "docker", "docker+guest", "bubblewrap"}
    assert all(abs(one.error) < 0.2 for one in found)
    assert all(one.holds for one in found)


def test_the_order_of_substrates_is_predicted_for_every_workload_held_out(paper: Run) -> None:
    """Advice is an order: whoever was measured to be half as dear again as another was predicted to be dearer."""
    for pair in COMMITTED["pairs"]:
        found = held_out(paper, pair["known"], pair["held_out"])
        for one in found:
            for other in found:
                if one.measured_s > 1.5 * other.measured_s:
                    assert one.predicted_s > other.predicted_s


def test_a_line_is_predicted_exactly_but_for_noise() -> None:
    lines = {"chroot": (1.0, 0.5), "docker": (250.0, 50.0)}
    run = make_run({cell(name, tier): line for tier in ("t0", "t2") for name, line in lines.items()}, 100)
    (found,) = held_out(run, "t0", "t2")
    # Of the same length and work; it has one command more in its set-up than the made-up run gave it.
    assert found.predicted_s - 0.050 == pytest.approx(found.measured_s, rel=0.05)
