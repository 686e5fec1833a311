"""How sandboxes in pods end: nothing that ran is left by `close`, and every loss says what the pod's own status says."""

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Generator
from typing import Any

import pytest

from a_cluster import admin, eventually, own_namespace, processes_of
from excise.action import End, Shell
from excise.api import connect
from excise.errors import SandboxLost
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec
from excise.substrates.kubernetes import pod

PATHS = ("kubernetes", "kubernetes+guest", "kubernetes+guest?link=exec", "kubernetes+guest?link=tcp")
MIB = 1 << 20
TERMS: dict[str, Any] = {"deadline_s": 60.0, "lease_s": 120.0, "labels": {}}


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    runs_here("kubernetes")
    with own_namespace() as name:
        yield name


def _in(namespace: str, path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}namespace={namespace}"


def _on_this_host(uid: str) -> dict[int, bytes]:
    found = processes_of(uid)
    if not found:
        pytest.skip("the cluster's node is not this machine")
    return found


def test_what_ran_in_a_sandbox_does_not_outlive_close(namespace: str) -> None:
    """The API forgets a pod at once, and its node takes some seconds: what actions left running must not have those."""

    async def by(path: str) -> None:
        async with connect(_in(namespace, path)) as substrate:
            box = Sandbox(substrate, ttl_s=120)
            await box.open()
            await box.run("sleep 4321 &")
            process = await box.start("sleep 4322")
            uid = pod.split_id(box.id)[1]

            async def both_run() -> bool | None:
                return {b"sleep\0004321\0", b"sleep\0004322\0"} <= set(_on_this_host(uid).values()) or None

            await eventually(both_run, "the actions do not run")
            await box.close()
            assert [line for line in processes_of(uid).values() if b"432" in line] == []
            with pytest.raises(SandboxLost):
                await process.wait()

    async def scenario() -> None:
        await asyncio.gather(*(by(path) for path in PATHS))

    asyncio.run(scenario())


def test_a_pod_killed_for_its_memory_is_lost_and_says_so(namespace: str) -> None:
    """The kernel takes the largest process, and the first one is small: it ends by the test's hand, right after a kill."""

    async def scenario() -> None:
        spec = Spec(limits=Limits(memory_bytes=32 * MIB))
        async with connect(_in(namespace, "kubernetes")) as substrate, Sandbox(substrate, spec, ttl_s=120) as box:
            process = await box.start("sleep 300")
            seen = await box.run("python3 -c 'b = bytearray(256 << 20)'", timeout_s=60)
            assert seen.end is End.OUT_OF_MEMORY
            running = _on_this_host(pod.split_id(box.id)[1])
            os.kill(next(pid for pid, line in running.items() if pod.PID_1.encode() in line), signal.SIGKILL)
            for ended in (process.wait(), box.run(["true"])):
                with pytest.raises(SandboxLost, match=r"killed for lack of memory \(OOMKilled, its limit is"):
                    await ended

    asyncio.run(scenario())


def test_who_did_not_make_a_sandbox_is_told_why_it_was_lost(namespace: str) -> None:
    """By no watch of its own: who attached to it, and who made it and has lost it to another client."""

    async def scenario() -> None:
        address, request = _in(namespace, "kubernetes"), uuid.uuid4().hex
        async with connect(address) as first, connect(address) as second, connect(address) as third, admin(namespace) as api:
            made = await first.create(Spec(), **TERMS, request_id=request)
            taken = await second.create(Spec(), **TERMS, request_id=request)
            attached = await third.attach(made.id)
            running = [asyncio.ensure_future(one.run(Shell("sleep 300"))) for one in (made, taken, attached)]
            name = pod.split_id(made.id)[0]

            async def began() -> bool | None:
                return (
                    len([1 for line in processes_of(pod.split_id(made.id)[1]).values() if b"sleep\000300" in line]) == 3 or None
                )

            await eventually(began, "the actions do not run")
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await api.request("POST", api.path("pods", f"{name}/eviction"), what="evict", body=body)
            for ended in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(ended, SandboxLost)
                assert "deleted" in str(ended)
            for one in (made, taken, attached):
                await one.close()

    asyncio.run(scenario())
