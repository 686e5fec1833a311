"""Every substrate of ours is held against the contract: one test for each address and promise.

The cases of an address run side by side, since most of their time is spent waiting for the substrate: the first test of an
address judges every case that was chosen, and each test tells its own verdict.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import pytest

from excise.api import connect
from excise.contract.case import Case
from excise.contract.suite import CASES, Verdict, check, grouped
from excise.spec import Spec
from excise.substrates.fake import virtual_time

ADDRESSES = (
    "local",
    "chroot",
    "chroot+guest",
    "namespace",
    "docker",
    "docker+guest",
    "kubernetes",
    "kubernetes+guest",
    "gvisor",
    "gvisor+guest",
    "microvm",
    "bubblewrap",
    "runc",
    "pool:namespace",
    "pool:docker",
)
POOLS_OWN = ("life", "loss", "state", "apart", "adopt", "ability")
"""What a pool does itself; the rest is its source's, which is judged alone, and over pool:namespace."""
KEPT = [(address, case) for address in ADDRESSES for case in (grouped(POOLS_OWN) if address == "pool:docker" else CASES)]
PROCESSES = "snapshot.processes"
"""Needed by cases that the fake keeps under another address: a snapshot carries files, or more."""
POOLED_FAKE = "pool:fake?create_s=0.5&pool.pressure=0"
"""Creates that take their time, so that idle sandboxes are worth claiming; nothing depends on how busy this host is."""
JOBS = 4
DEADLINE_S = 240.0
"""Of a case: on two cores it may have busy neighbours."""
LONGEST_S = 1200
"""All cases of an address. One that hangs is ended by its own deadline long before, and named."""


async def judged(address: str, names: Collection[str], jobs: int) -> dict[str, Verdict]:
    async with connect(address) as substrate:
        verdicts = await check(substrate, Spec(), only=names, jobs=jobs, deadline_s=DEADLINE_S)
    return {verdict.case.name: verdict for verdict in verdicts}


@pytest.fixture(scope="session")
def verdicts(chosen: Callable[[Callable[..., None]], list[dict[str, Any]]]) -> Callable[[str], Mapping[str, Verdict]]:
    """`verdicts(address)`: of the cases that this run chose, by name."""

    @cache
    def of(address: str) -> dict[str, Verdict]:
        names = {run["case"].name for run in chosen(test_keeps) if run["address"] == address}
        return asyncio.run(judged(address, names, JOBS))

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fake_keeps(case: Case) -> None:
    """The fake declares all there is, so that every case is seen both kept (here) and broken (in test_broken)."""
    address = "fake?snapshot=processes" if PROCESSES in case.needs else "fake"
    verdict = virtual_time.run(judged(address, {case.name}, jobs=1))[case.name]
    assert (verdict.outcome, verdict.reason) == ("kept", "")


@pytest.fixture(scope="session")
def pooled(chosen: Callable[[Callable[..., None]], list[dict[str, Any]]]) -> Mapping[str, Verdict]:
    """All cases on one pool: most of them meet a sandbox that an earlier one has used."""
    names = {run["case"].name for run in chosen(test_pool_over_fake_keeps)}
    return virtual_time.run(judged(POOLED_FAKE, names, jobs=1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pool_over_fake_keeps(case: Case, pooled: Mapping[str, Verdict]) -> None:
    verdict = pooled[case.name]
    if PROCESSES in case.needs:
        assert verdict.outcome == "not declared"
        return
    assert (verdict.outcome, verdict.reason) == ("kept", "")


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize(("address", "case"), KEPT, ids=[f"{address}-{case.name}" for address, case in KEPT])
def test_keeps(
    address: str, case: Case, runs_here: Callable[[str], None], verdicts: Callable[[str], Mapping[str, Verdict]]
) -> None:
    runs_here(address)
    verdict = verdicts(address)[case.name]
    if verdict.outcome == "not declared":
        pytest.skip(verdict.reason)
    assert (verdict.outcome, verdict.reason) == ("kept", ""), case.promise
