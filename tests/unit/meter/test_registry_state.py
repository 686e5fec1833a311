"""state=registry: every wave's sandboxes are made from an image that nobody had; cold: of this host alone."""

import asyncio

import pytest

from excise.errors import SpecError
from excise.meter import cold, identity
from excise.meter.admission import Admitted
from excise.meter.answers import Sameness
from excise.meter.cells import refusal, sort_out
from excise.meter.records import Cell, State
from excise.meter.rounds import Bench, Rounds, Slot
from excise.plans import Grid, load_rollouts
from excise.substrate import Capabilities
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.substrates.local import LocalSubstrate
from excise.workloads.t0 import T0


class Names:
    """Another name each time, until there are no more."""

    def __init__(self, count=9):
        self.left = count
        self.given = []

    async def next(self):
        if not self.left:
            raise SpecError("the registry's disk is full")
        self.left -= 1
        self.given.append(f"127.0.0.1:1/fresh:{self.left}")
        return self.given[-1]


class Noted(FakeSubstrate):
    """A fake that notes what it was asked to make sandboxes from."""

    def __init__(self):
        super().__init__()
        self.images = []

    async def create(self, start, **more):
        self.images.append(start.image)
        return await super().create(start, **more)


async def nobody(workload):
    return ()


def trials_of(names, *slots, state: State = "registry", concurrency=2):
    substrate = Noted()
    bench = Bench(substrates={"it": substrate}, workloads={"t0": T0()}, nulls=frozenset(), fresh=names)
    cell = Cell(address="it", workload="t0", state=state, concurrency=concurrency)

    async def body():
        runner = Rounds(bench, "r", quiet_s=0.02, same=Sameness({}, nobody), identify=False)
        try:
            return [trial for block in slots for trial in await runner.run(Slot(block, 0, cell))]
        finally:
            await runner.close()

    return virtually(body()), substrate.images


def test_a_wave_has_one_image_and_the_next_another():
    names = Names()
    trials, images = trials_of(names, 0, 1)
    assert [trial.failure for trial in trials] == [None] * 4
    assert images == [names.given[0]] * 2 + [names.given[1]] * 2
    assert len(set(names.given)) == 2


def test_who_is_warm_asks_for_none():
    names = Names()
    _, images = trials_of(names, 0, 1, state="warm")
    assert (names.given, set(images)) == ([], {"host"})


def test_an_image_that_cannot_be_published_is_that_trials_failure():
    trials, images = trials_of(Names(1), 0, 1)
    assert [trial.failure for trial in trials] == [None, None, *["the registry's disk is full"] * 2]
    assert len(images) == 2


def test_nothing_is_pulled_before_its_trial(monkeypatch):
    """After the page cache was dropped others are warmed once; a pull in advance would leave nothing to measure."""
    monkeypatch.setattr(cold, "drop_caches", lambda: None)
    names, substrate = Names(), Noted()
    bench = Bench(substrates={"it": substrate}, workloads={"t0": T0()}, nulls=frozenset(), fresh=names)

    async def body():
        runner = Rounds(bench, "r", quiet_s=0.02, same=Sameness({}, nobody), identify=False)
        for state in ("cold", "registry"):
            await runner.run(Slot(0, 0, Cell(address="it", workload="t0", state=state)))
        await runner.close()

    asyncio.run(body())
    assert substrate.images == ["host", names.given[0]]


def test_only_new_sandboxes_are_made_from_a_registry():
    cell = Cell(address="it", workload="t0", state="registry", reset="fork")
    assert "reset=fork" in (refusal(cell, Capabilities(snapshot="files")) or "")


@pytest.mark.parametrize(("boot", "kernel", "runs"), [(None, "shared", True), ("x", "shared", False), ("x", "own", True)])
def test_cold_is_for_sandboxes_of_this_host(monkeypatch, boot, kernel, runs):
    """A pod of another node shares that node's kernel: dropping our page cache would leave it as warm as it was."""
    monkeypatch.setattr(cold, "refusal", lambda: None)
    if boot is not None:
        monkeypatch.setattr(identity, "this_host", lambda: identity.Host(boot, frozenset()))

    async def body():
        substrate = LocalSubstrate()
        bench = Bench(substrates={"it": substrate}, workloads={"t0": T0()}, nulls=frozenset())
        admitted = {"it": Admitted(substrate=substrate, capabilities=Capabilities(kernel=kernel))}
        try:
            return await sort_out([Cell(address="it", workload="t0", state="cold")], admitted, bench)
        finally:
            await substrate.close()

    found = asyncio.run(body())
    assert bool(found.runnable) == runs
    assert runs or "runs on another: use state=registry" in found.skipped[0].reason


def test_the_plan_of_clusters_pulls_only_where_a_create_does():
    plan = load_rollouts("cluster")
    cells = plan.cells((), {text: text for text in plan.texts()})
    assert {cell.address for cell in cells if cell.state == "registry"} == {"kubernetes", "kubernetes+guest"}
    assert {cell.concurrency for cell in cells if cell.address == "kubernetes" and cell.workload == "t0"} == {1, 4, 16, 32}
    assert Grid(states=("registry",)).states == ("registry",)
