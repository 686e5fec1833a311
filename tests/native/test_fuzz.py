"""Every part that parses bytes of others, under clang's fuzzer and sanitizers: a fixed number of runs from a fixed seed."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
FUZZ = NATIVE / "fuzz"
RUNS = {"untar": 3_000, "fields": 100_000, "link": 30_000, "users": 30_000, "plan": 30_000, "status": 100_000}
APART = ("sh", "-c", '"$@"; exit $?', "sh")
"""A process between: what a process took before it became the fuzzer counts as the fuzzer's, and we are large."""
_LIMIT_S = 600
"""Of seconds, and the work is counted in runs: a busy machine takes longer over the same."""
pytestmark = pytest.mark.timeout(2 * _LIMIT_S)


@pytest.fixture(scope="module")
def fuzzers(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Path:
    out = tmp_path_factory.mktemp("fuzz")
    try:
        subprocess.run(["clang", "--version"], capture_output=True, check=True, timeout=60)
    except FileNotFoundError:
        must_work("clang", "clang is not installed")
    make = ["make", "-s", f"-j{os.cpu_count()}", "-C", str(NATIVE), f"OUT={out}", "fuzzers"]
    made = subprocess.run(make, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert made.returncode == 0, made.stderr
    return out


def test_every_fuzzer_is_run_and_has_seeds() -> None:
    assert {path.stem for path in FUZZ.glob("*.c")} == set(RUNS) == {path.name for path in (FUZZ / "seeds").iterdir()}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_no_input_breaks_it(fuzzers: Path, tmp_path: Path, name: str) -> None:
    found = tmp_path / "found"
    found.mkdir()
    command = [
        str(fuzzers / f"fuzz-{name}"),
        f"-runs={RUNS[name]}",
        "-seed=1",
        "-timeout=60",
        "-close_fd_mask=3",
        "-rss_limit_mb=1024",
    ]
    ran = subprocess.run(
        [*APART, *command, f"-artifact_prefix={tmp_path}/", str(found), str(FUZZ / "seeds" / name)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_LIMIT_S,
        env={"TMPDIR": str(tmp_path)},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert f"Done {RUNS[name]} runs" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["found"]
