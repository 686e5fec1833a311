"""`vm` and `vm+guest` before the contract, with one machine each: booting takes too long for a machine a case.

The cases that allow it share that machine, one after another, and its death under an action is the last thing it shows.
What needs machines of its own is run by `excise check vm`, and is told as skipped here.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from excise.action import Shell
from excise.api import connect
from excise.contract import scripts
from excise.contract.bound import Sandboxes
from excise.contract.case import Case
from excise.contract.sharing import Shared
from excise.contract.suite import SHARING, Trial, Verdict, named
from excise.errors import SandboxLost
from excise.spec import Spec

ADDRESSES = ("vm", "vm+guest")
CASES = named(SHARING)
DEADLINE_S = 300.0
"""Of a case: an emulated processor beside busy neighbours takes its time."""
LONGEST_S = 1800
DEATH = "death"


async def judged(address: str, names: Collection[str]) -> dict[str, Verdict | str]:
    """The cases' verdicts, and what an action was told whose machine died under it."""
    told: dict[str, Verdict | str] = {}
    async with connect(address) as substrate:
        sandboxes = Sandboxes(1)
        shared = Shared(substrate, Spec(), sandboxes)
        trial = Trial(substrate, await substrate.probe(), Spec(), DEADLINE_S, sandboxes)
        try:
            for case in named(names):
                told[case.name] = await trial.judge(case, shared)
            await shared.prepare()
            told[DEATH] = await _died(shared)
        finally:
            await shared.close()
    return told


async def _died(shared: Shared) -> str:
    """The machine's QEMU is killed, as by a host out of memory, while an action runs."""
    action = asyncio.ensure_future(shared.handle.run(Shell(scripts.SAY_STARTED_THEN_SLEEP)))
    await shared.handle.run(Shell(scripts.WAIT_FOR_STARTED, timeout_s=DEADLINE_S))
    (qemu,) = _qemus()
    os.kill(qemu, signal.SIGKILL)
    try:
        async with asyncio.timeout(DEADLINE_S):
            seen = await action
    except SandboxLost as error:
        return str(error)
    return f"it returned {seen}"


def _qemus() -> list[int]:
    """Of this process."""
    found = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in found if "qemu" in str(Path(f"/proc/{pid}/exe").readlink())]


@pytest.fixture(scope="session")
def verdicts(chosen: Callable[[Callable[..., None]], list[dict[str, Any]]]) -> Callable[[str], Mapping[str, Verdict | str]]:
    """`verdicts(address)`: of the cases that this run chose, by name."""

    @cache
    def of(address: str) -> dict[str, Verdict | str]:
        names = {run["case"].name for run in chosen(test_keeps) if run["address"] == address}
        return asyncio.run(judged(address, names))

    return of


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("address", ADDRESSES)
def test_keeps(
    address: str, case: Case, runs_here: Callable[[str], None], verdicts: Callable[[str], Mapping[str, Verdict | str]]
) -> None:
    runs_here(address)
    verdict = verdicts(address)[case.name]
    assert isinstance(verdict, Verdict)
    if verdict.outcome in ("not declared", "not run"):
        pytest.skip(verdict.reason)
    assert (verdict.outcome, verdict.reason) == ("kept", ""), case.promise


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_machine_that_dies_is_lost_and_says_why(
    address: str, runs_here: Callable[[str], None], verdicts: Callable[[str], Mapping[str, Verdict | str]]
) -> None:
    runs_here(address)
    told = verdicts(address)[DEATH]
    assert isinstance(told, str)
    assert "QEMU was ended by SIGKILL" in told
    assert "its console's last lines: " in told
