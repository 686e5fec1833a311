"""What work is measured on: the first of a short list that runs here."""

import asyncio
from collections.abc import Callable

import pytest

from excise.measuring import ready, references
from excise.meter.records import Skipped
from excise.plans import Grid, RolloutPlan
from excise.plans.rollout import overridden


def chosen(plan: RolloutPlan) -> tuple[str | None, set[str]]:
    """The reference that a run of `plan` would have, and who could not take part."""

    async def check() -> tuple[str | None, set[str]]:
        async with ready(plan, ()) as found:
            seen = found.field.seen
            return found.field.reference, {address for address, one in seen.items() if isinstance(one, Skipped)}

    return asyncio.run(check())


PLAN = RolloutPlan(grids=(Grid(addresses=("fake",)),), blocks=1)


def test_local_is_for_the_hosts_own_image_alone() -> None:
    assert tuple(references("host")) == ("chroot+guest", "chroot", "local")
    assert tuple(references("excise/base")) == ("chroot+guest", "chroot")


def test_work_is_timed_by_the_guest_where_it_runs(runs_here: Callable[[str], None]) -> None:
    runs_here("chroot+guest")
    assert chosen(PLAN) == ("chroot+guest", set())


def test_without_the_guest_work_is_timed_by_python(runs_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    runs_here("chroot")
    monkeypatch.setattr("excise.guest.programs.platform.machine", lambda: "a machine that no guest is built for")
    assert chosen(PLAN) == ("chroot", {"chroot+guest"})


def test_what_is_named_goes_before_all() -> None:
    assert chosen(overridden(PLAN, reference="local"))[0] == "local"
