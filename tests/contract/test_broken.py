"""No case of the contract is one that cannot fail: a fake that breaks a promise is caught by that promise's own case."""

import pytest

from excise.api import connect
from excise.contract.case import Case
from excise.contract.suite import CASES, Verdict, check
from excise.spec import Spec
from excise.substrates.fake import virtual_time


async def judged(case: Case) -> Verdict:
    async with connect(f"fake:broken={case.name}") as substrate:
        (verdict,) = await check(substrate, Spec(), only={case.name})
        return verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_promise_is_seen(case: Case) -> None:
    verdict = virtual_time.run(judged(case))
    assert verdict.outcome == "broken"
    assert verdict.reason
    # What the suite finds left after any case is no merit of this one.
    assert not verdict.reason.startswith("closing failed")
