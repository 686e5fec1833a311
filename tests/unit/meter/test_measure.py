# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportOptionalMemberAccess=false

"""`excise.measure` and `excise.record` as users call them, on `local`, which runs everywhere."""

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import excise
import excise.sync
from excise.api import measure_async
from excise.errors import SpecError, SubstrateError
from excise.meter.provenance import provenance
from excise.meter.results import load
from excise.plans import Grid, RolloutPlan
from excise.sandbox import Sandbox
from excise.storage.image import resolve
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.t0 import T0


def test_measure_returns_rows_and_leaves_results(tmp_path):
    told = []
    run = excise.measure("local", reference="local", blocks=2, out=tmp_path / "out", progress=told.append)
    row = run["local"]
    assert (row.n, row.actions, row.reference, row.failures) == (2, 10, True, ())
    assert 0 < row.tax_rate.value < 1
    assert row.rollout(steps=150).total_s.value > row.total_s.value
    assert [at.block for at in told] == [0, 1, 2]
    assert [t.warmup for t in load(tmp_path / "out").trials] == [True, False, False]


def test_results_name_no_home_and_no_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = excise.measure("local", reference="local", blocks=1).path
    assert path.parent.name == "results"
    text = "".join(file.read_text() for file in path.iterdir())
    for private in (str(Path.home()), str(tmp_path), os.uname().nodename):
        assert len(private) < 5 or private not in text


def test_measure_works_in_a_thread_and_says_what_to_do_in_a_loop(tmp_path):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(excise.measure("local", reference="local", blocks=1, out=tmp_path / "a"))
    )
    thread.start()
    thread.join()
    assert found[0]["local"].n == 1

    async def inside():
        with pytest.raises(RuntimeError, match=r"await excise\.api\.measure_async instead"):
            excise.measure("local", reference="local", blocks=1, out=tmp_path / "b")
        return await measure_async("local", reference="local", blocks=1, out=tmp_path / "c")

    assert asyncio.run(inside())["local"].n == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("addresses", "options", "sentence"),
    [
        (("nosuch",), {}, "no substrate is called 'nosuch'"),
        (("local",), {"blocks": 0}, "a run has at least one block"),
        (("local",), {"budget_s": -1.0}, "leaves no time"),
        (("local",), {"workload": "t9"}, "no workload is called 't9'"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_nothing_is_written(tmp_path, addresses, options, sentence):
    with pytest.raises(SpecError, match=sentence):
        excise.measure(*addresses, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_what_cannot_run_is_skipped_with_its_reason_and_the_rest_goes_on(tmp_path):
    run = excise.measure("docker?host=unix:///nowhere.sock", "local", reference="local", blocks=1, out=tmp_path / "out")
    assert run["local"].n == 1
    assert [one.address for one in run.skipped] == ["docker?host=unix:///nowhere.sock"]
    assert run.skipped[0].reason


def test_an_image_nobody_has_is_said_and_nothing_is_written(tmp_path):
    with pytest.raises(SubstrateError, match="no substrate can run here"):
        excise.measure("local", reference="local", image="nosuch/image", blocks=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_record_divides_the_users_own_loop():
    async def rollout():
        async with Sandbox("local") as box:
            await box.run(["sleep", "0.05"])
            await asyncio.sleep(0.1)

    async def loop():
        with excise.record() as trace:
            await asyncio.gather(rollout(), rollout())
        await rollout()  # Outside the block: not recorded.
        return trace

    trace = asyncio.run(loop())
    found = trace.shares()
    assert found.sandboxes == 2
    assert found.work_s >= 2 * 0.05
    assert found.model_s >= 2 * 0.1
    assert found.undivided_s == 0
    assert str(trace).startswith("model ")


def test_the_image_and_the_code_are_known_by_their_content(tmp_path):
    origin = excise.measure("local", reference="local", blocks=1, out=tmp_path / "out").header.provenance
    assert origin.image_digest == asyncio.run(resolve("host")).digest
    assert origin.code.startswith("sha256:")
    assert origin.distribution


def test_a_skipped_address_is_called_what_it_was_asked_as(tmp_path):
    # fake calls itself by its options in an order of its own.
    asked = "fake?fail_create=1&seed=1"
    run = excise.measure(asked, "local", reference="local", blocks=1, out=tmp_path / "out")
    assert [one.address for one in run.skipped] == [asked]


def test_waiting_for_a_streamed_command_is_not_the_models_time():
    async def rollout():
        async with Sandbox(FakeSubstrate(create_s=0.5)) as box:
            process = await box.start("sleep 2; echo done")
            await asyncio.sleep(1)  # The model, while the command runs.
            async for _ in process.events():
                pass
            await asyncio.sleep(3)
            assert (await (await box.start("sleep 4")).wait()).ok

    async def recorded():
        with excise.record() as trace:
            await rollout()
        return trace.shares()

    found = virtually(recorded())
    assert found.undivided_s == pytest.approx((2 - 1) + 4)
    assert found.model_s == pytest.approx(1 + 3)


def test_threads_record_in_a_copy_of_the_context():
    def rollout():
        with excise.sync.Sandbox("fake") as box:
            box.run("true")

    with excise.record() as trace, ThreadPoolExecutor(2) as pool:
        pool.submit(rollout).result()
        assert "no sandbox was used here" in str(trace)
        for done in [pool.submit(contextvars.copy_context().run, rollout) for _ in range(2)]:
            done.result()
    assert trace.shares().sandboxes == 2


def test_a_workload_that_cannot_be_made_ready_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    class Unready(T0):
        """T0 over a repository that nobody can fetch today."""

        @property
        def name(self):
            return "unready"

        @asynccontextmanager
        async def hosted(self, cache):
            raise SubstrateError("the package index does not answer")
            yield

    monkeypatch.setattr("excise.measuring.make_workload", lambda text: Unready() if text == "unready" else T0())
    plan = RolloutPlan(grids=(Grid(addresses=("local",), workloads=("unready", "t0")),), reference="local", blocks=1)
    run = excise.measure(plan=plan, out=tmp_path / "out")
    assert [(row.cell.workload, row.n) for row in run.rows] == [("t0", 1)]
    assert [(one.cell.workload, one.reason) for one in run.skipped] == [("unready", "the package index does not answer")]


def test_the_code_is_the_programs_too(tmp_path, monkeypatch):
    package = tmp_path / "excise"
    (package / "meter").mkdir(parents=True)
    (package / "native").mkdir()
    monkeypatch.setattr("excise.meter.provenance.__file__", str(package / "meter" / "provenance.py"))
    found = set()
    for path in ("meter/provenance.py", "native/excise-guest", "native/excise-guest"):
        with (package / path).open("a") as file:
            file.write("x")
        found.add(provenance(tmp_path, {}).code)
    assert len(found) == 3
    assert provenance(tmp_path, {}).commit == "unknown"
