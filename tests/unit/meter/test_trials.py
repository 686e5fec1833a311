# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

"""Whole runs on `fake` and the virtual clock, where every latency is known and every term can be worked out on paper."""

import asyncio

import msgspec
import pytest

from excise.action import Exec
from excise.errors import SpecError
from excise.meter.admission import Admitted, Field, admit
from excise.meter.answers import Sameness
from excise.meter.conduct import Request, conduct
from excise.meter.host import Counters
from excise.meter.null import NullSubstrate
from excise.meter.places import Recreate
from excise.meter.privacy import without_home
from excise.meter.records import NULL, Cell, Skipped
from excise.meter.rounds import Bench, Rounds, Slot
from excise.meter.trial import Conditions, roll_out
from excise.report.terms import parts_s
from excise.sandbox import Sandbox
from excise.spec import Spec, Step
from excise.stats.run import Run
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.trace import Trace, recording
from excise.workloads.t0 import T0

FLOOR = {"create_s": 0.001, "ready_s": 0.001, "action_s": 0.0005, "guest_s": 0.002, "close_s": 0.001}
ENGINE = {"create_s": 0.2, "ready_s": 0.05, "action_s": 0.04, "guest_s": 0.003, "close_s": 0.06}


class Blind:
    """A substrate as another one is, but without a clock inside."""

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def probe(self):
        return msgspec.structs.replace(await self._source.probe(), guest_clock=False)

    async def create(self, start, **terms):
        return BlindHandle(await self._source.create(start, **terms))


class BlindHandle:
    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def run(self, action):
        return msgspec.structs.replace(await self._source.run(action), guest_ns=None)


def measured(tmp_path, *, blocks=8, budget_s=None, actions=10, work=None, reference="floor", **substrates):
    """A run of the substrates by name, on the virtual clock."""

    async def body():
        spec = Spec()
        seen = {name: await admit(one, spec) for name, one in substrates.items()}
        field = Field(seen=seen, reference=reference)
        nonlocal work
        work = work or T0(actions=actions)
        cells = tuple(Cell(address=name, workload=work.name) for name in substrates)
        request = Request(cells=cells, workloads={work.name: work}, blocks=blocks, budget_s=budget_s, out=tmp_path / "out")
        results = await conduct(request, field, lambda _: None)
        for one in substrates.values():
            await one.close()
        return Run(results)

    return virtually(body())


async def one_round(substrate, *, nulls=False, identify=False, work=None, **factors):
    """The trials of one cell, once."""
    work = work or T0()
    cell = Cell(address="it", workload=work.name, **factors)
    bench = Bench(substrates={"it": substrate}, workloads={work.name: work}, nulls=frozenset({"it"} if nulls else ()))
    rounds = Rounds(bench, "r", quiet_s=0.02, same=Sameness({}, nobody), identify=identify)
    try:
        return await rounds.run(Slot(0, 0, cell))
    finally:
        await rounds.close()


async def nobody(workload):
    return ()


def test_terms_are_the_latencies_that_were_scripted(tmp_path):
    run = measured(tmp_path, floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    row = run["engine"]
    assert row.failures == ()
    # Ready includes a first command's answer.
    assert row.start_s.value == pytest.approx(0.2 + 0.05 + 0.04 + 0.003)
    assert row.dispatch_s.value == pytest.approx(0.04)
    assert row.slowdown_s.value == pytest.approx(0.003 - 0.002)
    assert row.work_s.value == pytest.approx(0.002)
    assert row.cleanup_s.value == pytest.approx(0.06)
    assert row.unattributed_s.value == pytest.approx(0)
    assert row.total_s.value == pytest.approx(0.293 + 10 * 0.043 + 0.06)
    assert row.tax_rate.value == pytest.approx(1 - 10 * 0.002 / row.total_s.value)
    assert (row.tax_rate.low, row.tax_rate.high) == (pytest.approx(row.tax_rate.value), pytest.approx(row.tax_rate.value))
    assert not row.estimated
    assert run["floor"].slowdown_s.value == 0


def test_set_up_is_a_term_of_its_own_and_the_terms_still_add_up(tmp_path):
    """Two steps, a boot command and a probe after a first command has answered: none of them is start."""

    class Built(T0):
        def spec(self, image):
            step = Step("build", (Exec(("true",)), Exec(("true",))))
            return Spec(image=image, steps=(step,), boot=(Exec(("true",)),), ready=(Exec(("true",)),))

    run = measured(tmp_path, work=Built(), floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    row = run["engine"]
    assert row.start_s.value == pytest.approx(0.2 + 0.05 + 0.043)
    assert row.setup_s.value == pytest.approx(4 * 0.043)
    assert row.unattributed_s.value == pytest.approx(0)
    assert row.total_s.value == pytest.approx(0.293 + row.setup_s.value + 10 * 0.043 + 0.06)
    assert row.tax_s.value == pytest.approx(row.total_s.value - 10 * 0.002)
    assert sum(parts_s(row).values()) == pytest.approx(row.total_s.value)
    # It is paid once a rollout, whatever its length.
    assert row.rollout(steps=150).total_s.value == pytest.approx(0.293 + row.setup_s.value + 150 * 0.043 + 0.06)
    assert run.starts_s(row.cell)[0] == [pytest.approx(0.293 + row.setup_s.value)]


def test_without_a_clock_inside_null_actions_estimate_dispatch_and_are_not_counted(tmp_path):
    run = measured(tmp_path, floor=FakeSubstrate(**FLOOR), engine=Blind(FakeSubstrate(**ENGINE)))
    row = run["engine"]
    assert row.estimated
    # A null action of 43 ms less the reference's 2 ms of work: the engine's slowdown of 1 ms is in it.
    assert row.dispatch_s.value == pytest.approx(0.041)
    assert row.slowdown_s.value == pytest.approx(0)
    assert row.total_s.value == pytest.approx(0.293 + 10 * 0.043 + 0.06)
    assert run["floor"].total_s.value == pytest.approx(0.001 + 0.001 + 11 * 0.0025 + 0.001)
    nulls = [sum(s.name == NULL for s in t.spans) for t in run._results.trials]
    assert set(nulls) == {10}


def test_nobody_runs_null_actions_where_everybody_has_a_clock(tmp_path):
    run = measured(tmp_path, blocks=1, floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    assert not any(s.name == NULL for t in run._results.trials for s in t.spans)


def test_a_composed_rollout_is_what_a_long_one_takes(tmp_path):
    short = measured(tmp_path / "10", floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    long = measured(tmp_path / "150", blocks=1, actions=150, floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    composed, real = short["engine"].rollout(steps=150), long["engine"].rollout(steps=150)
    assert (composed.composed, real.composed) == (True, False)
    assert composed.total_s.value == pytest.approx(real.total_s.value)
    assert composed.tax_rate.value == pytest.approx(real.tax_rate.value)


def test_a_budget_leaves_whole_blocks(tmp_path):
    # A block takes 0.783 + 0.0305 s and two quiet windows of 20 ms: 0.8535 s. Five of them fit, the warm-up included.
    run = measured(tmp_path, blocks=None, budget_s=5.0, floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE))
    assert run.blocks == 4
    assert len(run._results.trials) == 10
    ends = {t.block: t.position for t in run._results.trials}
    assert set(ends.values()) == {1}


def test_failures_are_counted_with_their_reasons_and_the_rest_goes_on(tmp_path):
    faulty = FakeSubstrate(**ENGINE, lose=0.05, seed=3)
    run = measured(tmp_path, blocks=40, floor=FakeSubstrate(**FLOOR), engine=faulty)
    row = run["engine"]
    assert 0 < row.n < row.attempted == 40
    assert sum(count for _, count in row.failures) == 40 - row.n
    assert all(reason.startswith("SandboxLost: ") for reason, _ in row.failures)
    assert row.success.low < row.n / 40 < row.success.high
    # A lost trial is in no time: what is left is as if nothing had happened.
    assert row.total_s.value == pytest.approx(0.783)
    assert run["floor"].n == 40


def test_a_block_without_its_reference_counts_for_totals_and_not_for_tax(tmp_path):
    floor = FakeSubstrate(**FLOOR, lose=0.05, seed=5)
    run = measured(tmp_path, blocks=20, floor=floor, engine=FakeSubstrate(**ENGINE))
    row = run["engine"]
    assert row.n == 20
    assert row.paired == run["floor"].n < 20
    assert row.tax_rate.value == pytest.approx(1 - 0.02 / 0.783)


def test_with_no_reference_totals_are_known_and_tax_is_not(tmp_path):
    run = measured(tmp_path, reference=None, engine=FakeSubstrate(**ENGINE))
    assert run["engine"].total_s.value == pytest.approx(0.783)
    assert run["engine"].tax_rate is run["engine"].dispatch_s is None
    assert run["engine"].rollout(steps=150).tax_rate is None


def test_the_order_is_seeded_and_differs_between_blocks(tmp_path):
    names = [{"floor": FakeSubstrate(**FLOOR), "engine": FakeSubstrate(**ENGINE)} for _ in range(2)]
    one, two = (measured(tmp_path / str(i), blocks=12, **these) for i, these in enumerate(names))
    orders = [[t.cell.address for t in run._results.trials] for run in (one, two)]
    assert orders[0] == orders[1]
    assert len({tuple(orders[0][i : i + 2]) for i in range(0, 24, 2)}) == 2


def test_other_work_is_a_failure_that_reads_the_same_every_time():
    # The null substrate answers everything with nothing: not what T0 asked for.
    seen = [virtually(roll_out(Recreate(NullSubstrate(), Spec()), T0())) for _ in range(2)]
    assert seen[0].failure == seen[1].failure == "action 1 (Exec) did other work: it answered b'', not b'NONCE-0\\n'"


def test_a_substrate_that_makes_no_sandbox_is_not_admitted():
    async def body():
        good, bad = FakeSubstrate(), FakeSubstrate(fail_create=1.0)
        return await admit(good, Spec()), await admit(bad, Spec())

    good, bad = virtually(body())
    assert isinstance(good, Admitted)
    assert isinstance(bad, Skipped)
    assert bad.reason


def test_null_actions_cost_a_rollout_neither_time_nor_cpu(monkeypatch):
    """Every reading of the host's counters finds a tick more: what is counted is what lies between the readings."""
    ticks = iter(range(1000))

    def ticking():
        return Counters(busy_s=next(ticks) / 100, steal_s=0.0, pressure_ns=None, pressure_avg10=None)

    for module in ("rounds", "trial"):
        monkeypatch.setattr(f"excise.meter.{module}.counters", ticking)
    (seen,) = virtually(one_round(FakeSubstrate(**ENGINE), nulls=True))
    # 24 readings, two of them around the quiet window: 21 ticks, of which 10 passed within null actions.
    assert seen.cpu_s == pytest.approx(0.11)
    assert seen.apart_ns == 10 * 43_000_000
    assert seen.wall_ns - seen.apart_ns == pytest.approx(783_000_000)


def test_a_null_action_that_fails_measures_nothing():
    class NoTrue(Blind):
        async def create(self, start, **terms):
            return NoTrueHandle(await self._source.create(start, **terms))

    class NoTrueHandle(BlindHandle):
        async def run(self, action):
            seen = await super().run(action)
            return msgspec.structs.replace(seen, exit_code=127) if getattr(action, "argv", ()) == ("true",) else seen

    seen = virtually(roll_out(Recreate(NoTrue(FakeSubstrate()), Spec()), T0(), Conditions(nulls=True)))
    assert seen.failure == "SubstrateError: the null action beside Exec failed: [exit code 127]"


def test_who_fails_now_and_then_is_admitted_and_counted(tmp_path):
    async def admitted(seed):
        return isinstance(await admit(FakeSubstrate(fail_create=0.2, seed=seed), Spec()), Admitted)

    assert sum(virtually(admitted(seed)) for seed in range(40)) >= 39
    run = measured(tmp_path, blocks=20, floor=FakeSubstrate(**FLOOR), engine=FakeSubstrate(**ENGINE, fail_create=0.2, seed=1))
    assert 0 < run["engine"].n < 20
    assert run["engine"].failures[0][0].startswith("CreateError: ")


def test_no_home_directory_is_in_the_results(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    assert without_home(f"{home}/x.tar is not {home}fs") == f"~/x.tar is not {home}fs"

    async def body():
        one = FakeSubstrate()
        field = Field(
            seen={"fake": await admit(one, Spec()), "lost": await admit(Homeless(one), Spec(), "lost")}, reference="fake"
        )
        cells = (Cell(address="fake", workload="t0"),)
        request = Request(cells=cells, workloads={"t0": T0()}, image=f"{home}/x.tar", blocks=1, out=tmp_path / "out")
        return await conduct(request, field, lambda _: None)

    class Homeless(Blind):
        async def create(self, start, **terms):
            raise SpecError(f"there is no {home}/recipe.toml")

    header = virtually(body()).header
    assert (header.plan.image, header.skipped[0].reason) == ("~/x.tar", "there is no ~/recipe.toml")
    assert str(home) not in (tmp_path / "out" / "run.json").read_text()


def test_a_rollout_waits_for_nothing_outside_of_its_spans():
    """Whatever waits there lets other rollouts go first, and is unattributed: little alone, and much when 32 run at once."""
    trace, outside = Trace(), list[str]()

    async def rollout():
        with recording(trace):
            async with Sandbox(FakeSubstrate(), Spec()) as box:
                for _ in range(3):
                    await box.run(["true"])

    async def body():
        task = asyncio.create_task(rollout())
        while not task.done():
            await asyncio.sleep(0)
            if trace.spans and not task.done() and all(one.end_ns for one in trace.spans):
                outside.append(f"after {trace.spans[-1].name}")

    asyncio.run(body())
    assert [one.name for one in trace.spans].count("action") == 3
    assert outside == []
