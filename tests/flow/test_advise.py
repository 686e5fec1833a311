"""`excise advise` and `excise.advise`: the ranking, the table, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import excise
from excise.economics.demand import Demand
from excise.economics.measured import read
from excise.errors import SpecError
from excise.meter.records import Cell, Declared
from made_results import ORIGIN, plain_cells, write

EXCISE = str(Path(sys.executable).parent / "excise")
ALL = ("files", "ipc", "network", "processes")
DECLARED = {
    "chroot": Declared(kernel="shared", isolates=("files",)),
    "namespace": Declared(kernel="shared", isolates=ALL),
    "docker": Declared(kernel="shared", isolates=ALL),
    "docker+guest": Declared(kernel="intercepted", isolates=ALL),
    "bubblewrap": Declared(kernel="shared", isolates=ALL),
}


def advise(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EXCISE, "advise", *words], capture_output=True, env=dict(os.environ), check=False, timeout=60, text=True, cwd=cwd
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advise") / "run"
    crowd = tuple(Cell(address=address, workload="t2", concurrency=4) for address in ("docker", "namespace"))
    cells = (*plain_cells(workloads=("t0", "t2")), *crowd)
    return write(path, cells, origin=msgspec.structs.replace(ORIGIN, declared=DECLARED))


def test_the_cheapest_is_named_with_its_reason_and_the_rest_ranked(results: Path) -> None:
    shown = advise("--results", str(results), "--actions", "150")
    assert shown.returncode == 0, shown.stderr
    parts = shown.stdout.split("\n\n")
    assert parts[0].startswith("150 actions a rollout, work as measured, 1 at once\nkernel shared or better")
    assert parts[1].startswith("Of 1,000 rollouts")
    assert "Cheapest: namespace, a new sandbox each (excise.connect('namespace'))" in shown.stdout
    assert "Not measured here" in shown.stdout
    assert "of another host than this one" in " ".join(shown.stdout.split())


def test_isolation_narrows_the_choice_and_says_who_was_not_offered(results: Path) -> None:
    found = json.loads(advise("--results", str(results), "--kernel", "intercepted", "--json").stdout)
    assert [offer["address"] for offer in found["offers"]] == ["docker+guest"]
    assert {one["address"] for one in found["refused"]} == {"namespace", "docker", "bubblewrap"}
    assert found["offers"][0]["cost"]["low"] < found["offers"][0]["cost"]["value"]


def test_nothing_that_isolates_enough_is_exit_2_with_what_to_do(results: Path) -> None:
    shown = advise("--results", str(results), "--kernel", "own")
    assert shown.returncode == 2
    assert "its kernel is shared, and own is wanted" in shown.stderr
    assert "excise measure --plan isolation" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "excise measure --plan isolation"),
        (("--results", "nowhere"), "excise measure --plan isolation"),
        (("--actions", "0"), "a rollout has an action"),
        (("--isolates", "dreams"), "nothing isolates 'dreams'"),
        (("--worker", "-1"), "a number of 0 or more"),
    ],
)
def test_what_cannot_be_advised_is_one_sentence(tmp_path: Path, results: Path, words: tuple[str, ...], said: str) -> None:
    given = words if not words or words[0] == "--results" else ("--results", str(results), *words)
    shown = advise(*given, cwd=tmp_path)
    assert shown.returncode == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_parallel_rollouts_leave_out_who_was_measured_alone(results: Path) -> None:
    found = json.loads(advise("--results", str(results), "--parallel", "4", "--json").stdout)
    assert {offer["address"] for offer in found["offers"]} == {"docker", "namespace"}
    assert "docker+guest, 4 at once" in {one["name"] for one in found["unmeasured"]}


def test_the_table_is_markdown_with_clouds_that_were_not_run(results: Path) -> None:
    shown = advise("--results", str(results), "--table")
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "not run" in rows[-1]
    assert json.loads(advise("--results", str(results), "--table", "--json").stdout)[0]["address"]


def test_help_has_examples() -> None:
    assert "excise advise --actions 30 --work 20 --kernel own" in advise("--help").stdout


def test_the_same_in_python_by_phase(results: Path) -> None:
    """A trainer reads once, and asks in each phase."""
    known = read([results])
    short = excise.advise(results=known, actions=10, kernel="intercepted")
    long = excise.advise(Demand(actions=150), results=known)
    assert (short.best.address, long.best.address) == ("docker+guest", "namespace")
    assert excise.advise(results=[results], actions=150).best == long.best


def test_python_refuses_what_it_does_not_know(results: Path) -> None:
    with pytest.raises(SpecError, match="advise takes no 'speed'"):
        excise.advise(results=[results], speed=1)
    with pytest.raises(SpecError, match="not both"):
        excise.advise(Demand(), results=[results], actions=1)


def test_the_example_advises_each_phase(results: Path) -> None:
    example = Path(__file__).parents[2] / "examples/advise.py"
    argv = [sys.executable, "-W", "error", str(example), str(results)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "")
    explore, train, audit = shown.stdout.splitlines()
    assert explore.startswith("explore: excise.connect('namespace'), fresh")
    assert train.startswith("train: excise.connect(")
    assert audit.startswith("audit: nothing that was measured isolates enough")
