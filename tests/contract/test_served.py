"""What is served over TCP keeps the same contract as what is here, judged from another process."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest

import served
from excise.api import connect
from excise.contract.case import Case
from excise.contract.suite import CASES, Verdict, check
from excise.spec import Spec

DEADLINE_S = 240.0
LONGEST_S = 1200
NOT_OVER_A_WIRE = {"mount-is-there"}
"""A server keeps its own files to itself, and says so."""


@pytest.fixture(scope="module")
def verdicts(runs_here: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Generator[Mapping[str, Verdict]]:
    runs_here("namespace")

    async def judged(url: str) -> dict[str, Verdict]:
        async with connect(url) as substrate:
            return {one.case.name: one for one in await check(substrate, Spec(), jobs=4, deadline_s=DEADLINE_S)}

    place: Path = tmp_path_factory.mktemp("served")
    with served.serving(place, "--drain", "0s") as server:
        yield asyncio.run(judged(server.url))


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_served_keeps(case: Case, verdicts: Mapping[str, Verdict]) -> None:
    verdict = verdicts[case.name]
    if verdict.outcome == "not declared":
        pytest.skip(verdict.reason)
    assert (verdict.outcome, verdict.reason) == ("kept", ""), case.promise


def test_what_a_server_does_not_offer_is_not_declared(verdicts: Mapping[str, Verdict]) -> None:
    assert {name for name in NOT_OVER_A_WIRE if verdicts[name].outcome != "not declared"} == set()
