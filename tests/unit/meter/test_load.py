# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

"""Open-loop load on the virtual clock: rollouts begin when they are to begin, and are timed from then."""

import asyncio
import itertools
import statistics
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.meter.admission import Field, admit
from excise.meter.answers import Sameness
from excise.meter.arrivals import intended_ns
from excise.meter.conduct import Request, conduct
from excise.meter.records import Cell
from excise.meter.rounds import Bench, Rounds, Slot
from excise.plans import Grid, like, load_rollouts
from excise.spec import Spec
from excise.stats.condensed import condense
from excise.stats.run import Run
from excise.stats.tabulate import tabulate
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.t0 import T0

ENGINE = {"create_s": 0.2, "ready_s": 0.05, "action_s": 0.04, "guest_s": 0.003, "close_s": 0.06}
ALONE_S = 0.2 + 0.05 + 0.043 + 2 * 0.043 + 0.06
WORK = T0(actions=2)


def cell(**factors):
    return Cell(address="it", workload=WORK.name, **factors)


class Stalling:
    """A substrate that makes one sandbox at a time, and needs ten seconds for the first."""

    def __init__(self, source):
        self._source = source
        self._one = asyncio.Lock()
        self._first = True

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def create(self, start, **terms):
        async with self._one:
            if self._first:
                self._first = False
                await asyncio.sleep(10)
            return await self._source.create(start, **terms)


class Seizing(Stalling):
    """One whose first create holds up the event loop itself: nobody even begins meanwhile."""

    async def create(self, start, **terms):
        if self._first:
            self._first = False
            asyncio.get_running_loop()._virtual_s += 10
        return await self._source.create(start, **terms)


def trials_of(substrate, wanted, block=0, seed=0):
    async def nobody(workload):
        return ()

    async def body():
        bench = Bench(substrates={"it": substrate}, workloads={WORK.name: WORK}, nulls=frozenset())
        rounds = Rounds(bench, "r", quiet_s=0.02, same=Sameness({}, nobody), seed=seed, identify=False)
        try:
            return await rounds.run(Slot(block, 0, wanted))
        finally:
            await rounds.close()

    return virtually(body())


def test_arrivals_are_a_poisson_process_of_that_rate():
    times = intended_ns(cell(concurrency=4000, arrivals_per_s=8.0), seed=1, block=0)
    waits_s = [(b - a) / 1e9 for a, b in itertools.pairwise([0, *times])]
    assert min(waits_s) >= 0
    # Mean and standard deviation of an exponential are the same; both within five standard errors.
    assert statistics.mean(waits_s) == pytest.approx(1 / 8, rel=5 / 4000**0.5)
    assert statistics.stdev(waits_s) == pytest.approx(1 / 8, rel=10 / 4000**0.5)


def test_one_block_has_the_same_arrivals_for_every_substrate_and_the_next_has_others():
    wanted = {"workload": "t0", "concurrency": 8, "arrivals_per_s": 2.0}
    here, there = (intended_ns(Cell(address=address, **wanted), 0, 1) for address in ("a", "b"))
    assert here == there
    others = [
        intended_ns(Cell(address="a", **wanted), 0, 2),
        intended_ns(Cell(address="a", **wanted), 1, 1),
        intended_ns(Cell(address="a", **{**wanted, "arrivals_per_s": 4.0}), 0, 1),
    ]
    assert here not in others
    assert intended_ns(Cell(address="a", workload="t0", concurrency=3), 0, 0) == [0, 0, 0]


def test_nobody_waits_for_those_before_it():
    wanted = cell(concurrency=8, arrivals_per_s=50.0)
    trials = trials_of(FakeSubstrate(**ENGINE), wanted)
    assert [t.intended_ns for t in trials] == intended_ns(wanted, 0, 0)
    # All of them arrive before the first has ended, and each takes as long as it would alone.
    assert max(t.intended_ns for t in trials) < ALONE_S * 1e9
    assert [t.wall_ns for t in trials] == [pytest.approx(ALONE_S * 1e9)] * 8
    assert {t.late_ns for t in trials} == {0}
    assert {t.failure for t in trials} == {None}


@pytest.mark.parametrize("kind", [Stalling, Seizing])
def test_a_stall_counts_against_those_who_arrive_during_it(kind):
    """Whoever asked for a rollout waited from then, whether its sandbox was slow to come or it could not even begin."""
    wanted = cell(concurrency=20, arrivals_per_s=4.0)
    stalled = [condense(t) for t in trials_of(kind(FakeSubstrate(**ENGINE)), wanted)]
    over_s = 10 + stalled[0].intended_ns / 1e9
    assert stalled[-1].intended_ns / 1e9 < over_s
    for one in stalled[1:]:
        left_s = over_s - one.intended_ns / 1e9
        assert left_s <= one.waited_s <= left_s + 20 * ALONE_S
    # One after the other, each asked for when the one before it had ended, nineteen of twenty would have seen nothing of it.
    assert statistics.median(one.waited_s for one in stalled) > 5


def test_a_harness_that_was_held_up_is_late_and_says_so():
    trials = trials_of(Seizing(FakeSubstrate(**ENGINE)), cell(concurrency=20, arrivals_per_s=4.0))
    assert trials[0].late_ns == 0
    assert all(t.late_ns > 0 for t in trials[1:])
    assert [t.wall_ns for t in trials[1:]] == [pytest.approx(ALONE_S * 1e9)] * 19


def test_rows_have_waiting_and_throughput(tmp_path):
    burst, stream = cell(concurrency=8), cell(concurrency=8, arrivals_per_s=2.0)

    async def body():
        field = Field(seen={"it": await admit(FakeSubstrate(**ENGINE), Spec())}, reference="it")
        cells = (cell(), burst, stream)
        request = Request(cells=cells, workloads={WORK.name: WORK}, blocks=8, out=tmp_path / "out", seed=3)
        return await conduct(request, field, lambda _: None)

    run = Run(virtually(body()))
    plain, at_once, arriving = run.rows
    assert plain.waited_p50_s is plain.throughput_per_s is None
    assert at_once.waited_p50_s.value == pytest.approx(ALONE_S)
    assert at_once.throughput_per_s.value == pytest.approx(8 / ALONE_S)
    assert arriving.waited_p50_s.value == pytest.approx(ALONE_S)
    last_s = [intended_ns(stream, 3, block)[-1] / 1e9 for block in range(1, 9)]
    assert arriving.throughput_per_s.value == pytest.approx(8 * 8 / sum(at_s + ALONE_S for at_s in last_s))
    assert arriving.throughput_per_s.low < arriving.throughput_per_s.value < arriving.throughput_per_s.high
    assert arriving.name == "it (arrivals 8, rate 2/s)"
    assert like(Path(tmp_path / "out")).cells((), {WORK.name: WORK.name}) == run.header.plan.cells


def test_a_failed_arrival_counts_for_no_throughput():
    wanted = cell(concurrency=4, arrivals_per_s=4.0)
    good = [condense(t) for t in trials_of(FakeSubstrate(**ENGINE), wanted)]
    failing = trials_of(FakeSubstrate(**ENGINE, fail_create=0.5, seed=2), wanted)
    bad = [condense(t) for t in failing]
    failed = sum(t.failure is not None for t in bad)
    assert 0 < failed < 4
    ends_s = max(t.ended_ns for t in failing) / 1e9
    assert tabulate(wanted, bad, {}, reference=False).throughput_per_s.value == pytest.approx((4 - failed) / ends_s)
    assert tabulate(wanted, good, {}, reference=False).throughput_per_s.value > (4 - failed) / ends_s


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ({"arrivals_per_s": (2.0,)}, "say with concurrencies how many arrive"),
        ({"arrivals_per_s": (-1.0,), "concurrencies": (8,)}, "give numbers above 0"),
        ({"arrivals_per_s": (float("nan"),), "concurrencies": (8,)}, "give numbers above 0"),
    ],
)
def test_a_load_that_is_none_is_refused(factors, sentence):
    with pytest.raises(SpecError, match=sentence):
        Grid(**factors)


def test_the_plan_of_the_package_has_several_rates_and_a_burst():
    cells = load_rollouts("load").cells(["x"], {"t0": "t0"})
    assert [(c.concurrency, c.arrivals_per_s) for c in cells] == [(32, 2.0), (32, 8.0), (32, 32.0), (32, 0.0)]
