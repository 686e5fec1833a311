"""Pods of a real cluster: what becomes of them when somebody, or the kernel, ends them; and what is left afterwards."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from excise.action import End, Event, Exec, Shell
from excise.api import connect
from excise.errors import CapacityError, CreateError, ExciseError, SandboxLost, SpecError
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec
from excise.substrates.kubernetes import pod, policy
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.substrate import KubernetesSubstrate
from excise.trace import Trace, recording

MEBIBYTE = 1 << 20
EAT = Shell("python3 -c 'b = bytearray(256 << 20); print(len(b))'", timeout_s=60)
WAITS = Shell("echo started; sleep 1000", timeout_s=300)


@pytest.fixture(autouse=True)
def cluster(runs_here: Callable[[str], None]) -> None:
    runs_here("kubernetes")


def with_api(use: Callable[[KubernetesSubstrate, Api], Awaitable[None]]) -> None:
    async def main() -> None:
        api, substrate = Api(), KubernetesSubstrate()
        try:
            async with asyncio.timeout(100):
                await use(substrate, api)
        finally:
            await substrate.close()
            await api.close()

    asyncio.run(main())


def name_of(box: Sandbox) -> str:
    return pod.split_id(box.id)[0]


async def lost(box: Sandbox, end: Callable[[], Awaitable[object]]) -> str:
    """What a running action, and the next, are told once `end` has ended their sandbox."""
    process = await box.start(WAITS)
    events = process.events()
    await anext(events)
    await end()
    with pytest.raises(SandboxLost) as running:
        await _to_end(events)
    with pytest.raises(SandboxLost) as after:
        await box.run("true")
    assert str(after.value) == str(running.value)
    return str(running.value)


async def _to_end(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def test_a_pod_that_somebody_deletes_is_lost() -> None:
    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        async with Sandbox(substrate, Spec()) as box:
            assert "deleted" in await lost(box, lambda: api.delete("pods", name_of(box)))

    with_api(use)


def test_an_evicted_pod_is_lost_and_says_by_whom() -> None:
    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        async with Sandbox(substrate, Spec()) as box:
            await api.open()
            path = f"{api.path('pods', name_of(box))}/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name_of(box)}}
            assert "EvictionByEvictionAPI" in await lost(box, lambda: api.request("POST", path, what="evict", body=body))

    with_api(use)


def first_process(uid: str) -> int:
    """On this host, of a pod that runs on it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside, command = (entry / "cgroup").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if uid in inside.replace("_", "-") and pod.PID_1.encode() in command:
            return int(entry.name)
    pytest.skip("the cluster's node is not this machine")


def test_a_container_killed_from_outside_is_lost_and_no_result() -> None:
    async def use(substrate: KubernetesSubstrate, _: Api) -> None:
        async with Sandbox(substrate, Spec()) as box:
            process = first_process(pod.split_id(box.id)[1])

            async def kill() -> None:
                os.kill(process, signal.SIGKILL)

            assert "container ended" in await lost(box, kill)

    with_api(use)


def test_a_command_over_the_sandboxs_memory_is_told_and_137_alone_is_not() -> None:
    async def use(substrate: KubernetesSubstrate, _: Api) -> None:
        async with Sandbox(substrate, Spec(limits=Limits(memory_bytes=64 * MEBIBYTE))) as box:
            assert (await box.run(EAT)).end is End.OUT_OF_MEMORY
            seen = await box.run("kill -9 $$")
            assert (seen.end, seen.exit_code) == (End.EXITED, 137)

    with_api(use)


REFUSED: list[tuple[str, Spec, type[ExciseError], str]] = [
    ("pull_policy=Never", Spec(image="no/such:1"), SpecError, "does not hold the image"),
    ("network_policy=0", Spec(image="Not/A:::Name"), SpecError, "no image's name"),
    ("network_policy=0", Spec(limits=Limits(memory_bytes=1 << 50)), CapacityError, "Insufficient memory"),
    ("node_selector=disk:none-such", Spec(), CapacityError, "selector"),
    ("runtime_class=none-such", Spec(), SpecError, "runtime_class"),
    ("service_account=none-such", Spec(), SpecError, "service_account"),
    ("namespace=none-such", Spec(), SpecError, "kubectl create namespace none-such"),
    ("security=restricted", Spec(), SpecError, "runAsNonRoot"),
    ("network_policy=0", Spec(image="127.0.0.1:1/x"), CreateError, "connection refused"),
]


@pytest.mark.parametrize(("options", "spec", "kind", "words"), REFUSED)
def test_what_cannot_be_is_told_with_its_cause_within_the_deadline(options: str, spec: Spec, kind: type, words: str) -> None:
    async def main() -> None:
        async with connect(f"kubernetes?{options}") as substrate:
            with pytest.raises(ExciseError) as refused:
                await Sandbox(substrate, spec, wait_s=5, labels={"refused": options}).open()
            assert (type(refused.value), words in str(refused.value)) == (kind, True), refused.value
            assert await substrate.list({"refused": options}) == ()

    asyncio.run(main())


def test_an_unreachable_api_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        '{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c"}}],'
        ' "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]}'
    )

    async def main() -> None:
        async with connect(f"kubernetes?kubeconfig={path}") as substrate:
            with pytest.raises(ExciseError, match=r"no API server answers at https://127\.0\.0\.1:1"):
                await Sandbox(substrate, Spec(), wait_s=5).open()

    asyncio.run(main())


def test_a_quota_that_is_used_up_is_no_room() -> None:
    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        quota = {"metadata": {"name": "excise-test"}, "spec": {"hard": {"requests.cpu": "1m"}}}
        await api.create("resourcequotas", quota)
        try:
            with pytest.raises(CapacityError, match="quota is used up"):
                await Sandbox(substrate, Spec(limits=Limits(cpus=1))).open()
        finally:
            await api.delete("resourcequotas", "excise-test")

    with_api(use)


def test_secrets_are_in_no_object_of_the_cluster() -> None:
    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        async with Sandbox(substrate, Spec(secrets={"KEY": Secret("hush-hush")}, env={"NAME": "open"})) as box:
            assert (await box.run(Exec(("sh", "-c", "echo $KEY $NAME")))).stdout == b"hush-hush open\n"
            there = await api.get("pods", name_of(box))
            assert "hush-hush" not in str(there)
            assert "hush-hush" not in str(await api.list("events"))

    with_api(use)


def test_the_control_planes_share_is_in_the_trace() -> None:
    async def use(substrate: KubernetesSubstrate, _: Api) -> None:
        with recording(Trace()) as trace:
            async with Sandbox(substrate, Spec()):
                pass
        spans = {span.name: span for span in trace.spans}
        create = spans["create"]
        inside = [spans[name] for name in ("accepted", "scheduled", "started")]
        assert "pulled" not in spans  # the node had the image
        for before, after in pairwise(inside):
            assert before.end_ns == after.start_ns
        assert create.start_ns <= inside[0].start_ns < inside[-1].end_ns <= create.end_ns

    with_api(use)


def test_another_client_finds_a_sandbox_uses_it_and_closes_it() -> None:
    async def use(substrate: KubernetesSubstrate, _: Api) -> None:
        async with Sandbox(substrate, Spec()) as box, connect("kubernetes") as other:
            handle = await other.attach(box.id)
            assert (await handle.run(Shell("echo here"))).stdout == b"here\n"
            await handle.close()
            with pytest.raises(SandboxLost):
                await box.run("true")
            with pytest.raises(SandboxLost):
                await other.attach(box.id)

    with_api(use)


def test_a_create_that_is_sent_again_by_another_client_gives_the_same_sandbox() -> None:
    async def use(substrate: KubernetesSubstrate, _: Api) -> None:
        terms: dict[str, Any] = {"deadline_s": 30, "lease_s": 100, "labels": {}, "request_id": f"again-{os.getpid()}"}
        first = await substrate.create(Spec(), **terms)
        async with connect("kubernetes") as other:
            second = await other.create(Spec(), **terms)
            assert second.id == first.id
            assert (await first.run(Shell("echo both"))).ok
            await second.close()
        await first.close()
        third = await substrate.create(Spec(), **terms)
        assert third.id != first.id
        await third.close()

    with_api(use)


DIES = """
import asyncio, os, signal, sys
from excise.api import connect
from excise.spec import Spec

async def main():
    who, terms = sys.argv[1], {"deadline_s": 60, "lease_s": float(sys.argv[2]), "labels": {"who": sys.argv[1]}}
    async with connect("kubernetes") as substrate:
        await asyncio.gather(*(substrate.create(Spec(), request_id=f"{who}-{n}", **terms) for n in range(3)))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_nothing_is_left_after_a_clients_death_and_gc(tmp_path: Path) -> None:
    script, who = tmp_path / "dies.py", f"dead-{os.getpid()}"
    script.write_text(DIES)

    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        dying = await asyncio.create_subprocess_exec(sys.executable, str(script), who, "0.5")
        assert await dying.wait() == -signal.SIGKILL
        there = await substrate.list({"who": who})
        assert len(there) == 3
        async with Sandbox(substrate, Spec()) as box:  # which also takes its time
            taken = await substrate.collect()
            assert {one.id for one in there} <= set(taken)
            assert box.id not in taken
            assert (await box.run("true")).ok
        assert await substrate.list({"who": who}) == ()

    with_api(use)


def test_the_policy_is_there_for_who_comes_and_goes_when_nobody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_NAME", f"excise-test-{os.getpid()}")

    async def use(_: KubernetesSubstrate, api: Api) -> None:
        async def is_there() -> bool:
            return await api.get("networkpolicies", policy._NAME, group="networking.k8s.io/v1") is not None

        first, second = policy.Policy(api), policy.Policy(api)
        await first.hold()
        await first.collect()
        assert await is_there()  # a pod of somebody's may be on its way
        monkeypatch.setattr(policy, "_LEASE_S", 0.0)
        await second.hold()
        await second.collect()
        assert not await is_there()
        await second.hold()
        assert await is_there()
        await first.collect()
        assert not await is_there()

    with_api(use)


def test_one_that_is_renewed_while_gc_looks_is_not_taken() -> None:
    async def use(substrate: KubernetesSubstrate, api: Api) -> None:
        terms: dict[str, Any] = {"deadline_s": 30, "lease_s": 0, "labels": {}, "request_id": f"renewed-{os.getpid()}"}
        handle = await substrate.create(Spec(), **terms)
        name, uid = pod.split_id(handle.id)
        before = await api.get("pods", name)
        assert before is not None
        await handle.renew(100)
        assert await api.delete("pods", name, uid=uid, version=before["metadata"]["resourceVersion"]) is None
        assert handle.id not in await substrate.collect()
        await handle.close()

    with_api(use)
