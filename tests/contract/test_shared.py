"""Sharing a sandbox: every case still judges for itself, a broken one is named, and a bound on sandboxes is kept."""

from collections.abc import Mapping

import pytest

from excise.api import connect
from excise.contract.suite import CASES, SHARING, Verdict, check, named
from excise.spec import Spec
from excise.substrates.fake import virtual_time

OWN = {"env", "workdir-is-honoured"}
"""Of the groups that share: those that ask for a spec of their own."""
SHARED = sorted(SHARING - OWN)


async def judged(address: str, names: set[str] | None = None, sandboxes: int | None = 1) -> dict[str, Verdict]:
    async with connect(address) as substrate:
        verdicts = await check(substrate, Spec(), only=names, share=True, sandboxes=sandboxes)
    return {verdict.case.name: verdict for verdict in verdicts}


@pytest.fixture(scope="module")
def one_sandbox() -> Mapping[str, Verdict]:
    """All cases on the fake, with one sandbox for all of them."""
    return virtual_time.run(judged("fake"))


@pytest.mark.parametrize("name", SHARED)
def test_kept_in_a_sandbox_that_others_have_used(name: str, one_sandbox: Mapping[str, Verdict]) -> None:
    assert (one_sandbox[name].outcome, one_sandbox[name].reason) == ("kept", "")


def test_what_needs_its_own_is_not_run_and_never_kept(one_sandbox: Mapping[str, Verdict]) -> None:
    for case in CASES:
        verdict = one_sandbox[case.name]
        if case.name not in SHARED and verdict.outcome not in ("kept", "not declared"):
            assert (verdict.outcome, "1 were allowed" in verdict.reason) == ("not run", True), case.name
    # Those that make no sandbox at all where a kernel is not shared would be kept; the fake's is.
    assert {name for name, verdict in one_sandbox.items() if verdict.outcome == "kept"} == set(SHARED)


def test_without_a_bound_the_rest_has_sandboxes_of_its_own() -> None:
    verdicts = virtual_time.run(judged("fake", {"exit-code", "env", "close-twice", "fresh-means-fresh"}, sandboxes=None))
    assert {verdict.outcome for verdict in verdicts.values()} == {"kept"}


@pytest.mark.parametrize("name", SHARED)
def test_a_broken_promise_is_seen_among_kept_ones(name: str) -> None:
    beside = {"exit-code", "stdin-reaches", "file-round-trip"}
    verdicts = virtual_time.run(judged(f"fake:broken={name}", {name} | beside, sandboxes=None))
    assert verdicts[name].outcome == "broken"
    assert verdicts[name].reason


def test_one_that_is_lost_is_replaced_and_its_case_named() -> None:
    """The fake's wire is dead after a cancelled action: that case is broken, and the next ones have another sandbox."""
    names = {"cancel-leaves-it-usable", "session-keeps-state", "stream-events", "file-round-trip"}
    verdicts = virtual_time.run(judged("fake:broken=cancel-leaves-it-usable", names, sandboxes=None))
    assert verdicts["cancel-leaves-it-usable"].outcome == "broken"
    assert {verdicts[case.name].outcome for case in named(names - {"cancel-leaves-it-usable"})} == {"kept"}
