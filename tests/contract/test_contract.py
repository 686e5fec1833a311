"""Every substrate of ours is held against the contract: one test for each address and promise."""

import asyncio
from collections.abc import Callable

import pytest

from excise.api import connect
from excise.contract.case import Case
from excise.contract.suite import CASES, Verdict, check
from excise.spec import Spec
from excise.substrates.fake import virtual_time

ADDRESSES = ("local", "chroot", "chroot+guest", "namespace", "docker", "docker+guest", "bubblewrap", "runc")


async def judged(address: str, case: Case) -> Verdict:
    async with connect(address) as substrate:
        (verdict,) = await check(substrate, Spec(), only={case.name})
        return verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fake_keeps(case: Case) -> None:
    """The fake declares all there is, so that every case is seen both kept (here) and broken (in test_broken)."""
    verdict = virtual_time.run(judged("fake", case))
    assert (verdict.outcome, verdict.reason) == ("kept", "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("address", ADDRESSES)
def test_keeps(address: str, case: Case, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    verdict = asyncio.run(judged(address, case))
    if verdict.outcome == "not declared":
        pytest.skip(verdict.reason)
    assert (verdict.outcome, verdict.reason) == ("kept", ""), case.promise
