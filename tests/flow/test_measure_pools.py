"""`excise measure` with a plan of claims, over real sandboxes: a table, a directory that is read again, and what goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.cli.entry import main
from excise.errors import ExciseError
from excise.meter.results import load_pools
from excise.storage.home import cache_dir
from excise.storage.image import remove, resolve

PLAN = """
kind = "pool"
repositories = 2
blocks = 1
warmup_blocks = 0
[[grids]]
sources = ["namespace"]
modes = ["none", "exact", "closest"]
zipf = [0.8]
memory_percent = [50]
claims = [4]
arrivals_per_s = 20.0
lead = 1.0
options = { policy = "fixed", keep = "1" }
"""


@pytest.fixture
def plan(tmp_path: Path, runs_here: Callable[[str], None], must_work: Callable[[str, str], None]):
    runs_here("namespace")
    try:
        asyncio.run(resolve("excise/base"))
    except ExciseError as error:
        must_work("excise/base", str(error))
    before = set((cache_dir() / "mixed").glob("*"))
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    yield str(path)
    for made in set((cache_dir() / "mixed").glob("*.tar")) - before:
        asyncio.run(_forgotten(made))


async def _forgotten(tar: Path) -> None:
    await remove((await resolve(str(tar))).digest)
    tar.unlink()


def test_claims_are_measured_resumed_and_shown(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["measure", "--plan", plan, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "3 cells" in told
    assert "namespace, closest, zipf 0.8, 50 %, 4 claims at 20/s" in told
    assert main(["measure", "--plan", plan, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    header, trials = load_pools(out)
    assert [trial.failure for trial in trials] == [None] * 3
    assert {claim.failure for trial in trials for claim in trial.claims} == {None}
    hits = {trial.cell.mode: {claim.hit for claim in trial.claims} for trial in trials}
    assert hits["none"] == {""}
    assert hits["exact"] <= {"deps", "miss"}
    assert all(trial.cpu_s > 0 and len(trial.floor_ns) for trial in trials)
    assert header.plan.name == "plan"
    assert "closest state / exact match" in shown
    assert main(["measure", "--resume", str(out)]) == 0  # there is nothing left to do
    assert load_pools(out) == (header, trials)
    assert main(["measure", "--plan", plan, "--out", str(out)]) == 2
    assert main(["measure", "--plan", plan, "--workload", "t0"]) == 2
    assert "take no workload" in capsys.readouterr().err
