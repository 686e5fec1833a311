"""Sandboxes that died, or stand still, while nobody looked; and limits of containers that go on."""

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from excise.action import Exec, Shell
from excise.api import connect
from excise.errors import SandboxLost, SpecError
from excise.host.descendants import Tree
from excise.spec import Limits, Spec
from excise.substrate import Handle
from excise.substrates.docker.container import changed, spec_of

GIBIBYTE = 1 << 30


@asynccontextmanager
async def ready(address: str, spec: Spec | None = None) -> AsyncGenerator[Handle]:
    async with connect(address) as substrate:
        made = await substrate.create(
            spec or Spec(), deadline_s=60, lease_s=600, labels={}, request_id=f"alive-{uuid.uuid4().hex}"
        )
        try:
            await made.ready()
            await made.alive()
            yield made
        finally:
            await made.close()


async def silent(handle: Handle) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await handle.alive()


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("address", ["local", "chroot"])
def test_a_keeper_that_is_dead_or_stands_still_is_not_alive(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)

    async def check() -> None:
        async with ready(address) as handle:
            (keeper,) = keepers()
            os.kill(keeper, signal.SIGSTOP)  # which its supervisor sees, and has it go on
            async with asyncio.timeout(60):
                await handle.alive()
            os.kill(keeper, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await handle.alive()

    asyncio.run(check())


def keepers() -> list[int]:
    tree = Tree()
    return [keeper for supervisor in tree.children(os.getpid()) for keeper in tree.children(supervisor)]


def test_a_guest_in_a_chroot_that_is_killed_is_not_alive(runs_here: Callable[[str], None]) -> None:
    runs_here("chroot+guest")

    async def check() -> None:
        async with ready("chroot+guest") as handle:
            for keeper in keepers():
                for guest in Tree().children(keeper):
                    os.kill(guest, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await handle.alive()

    asyncio.run(check())


@pytest.mark.parametrize("address", ["docker", "docker+guest"])
def test_a_container_that_is_paused_or_killed_is_not_alive(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)

    async def check() -> None:
        async with ready(address) as handle:
            await handle.pause()
            if address == "docker":
                with pytest.raises(SandboxLost, match="it is paused"):
                    await handle.alive()
            else:
                await silent(handle)
            await handle.resume()
            await handle.alive()
            await asyncio.to_thread(docker, "kill", handle.id)
            with pytest.raises(SandboxLost):
                async with asyncio.timeout(60):
                    await handle.alive()

    asyncio.run(check())


def test_a_container_of_runc_that_is_killed_is_not_alive(runs_here: Callable[[str], None]) -> None:
    runs_here("runc")

    async def check() -> None:
        async with ready("runc") as handle:
            state = handle._terms.one["state"]  # type: ignore[attr-defined]
            kill = ["runc", "--root", f"{state}/state", "kill", handle.id, "KILL"]
            await asyncio.to_thread(subprocess.run, kill, check=True, timeout=20)
            with pytest.raises(SandboxLost):
                async with asyncio.timeout(20):
                    await handle.alive()

    asyncio.run(check())


# ---- limits of containers


@pytest.mark.parametrize("address", ["docker", "docker+guest"])
def test_a_containers_limits_are_changed_and_lifted_while_it_runs(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)

    async def check() -> None:
        async with ready(address) as handle:
            await handle.adopt(Spec(limits=Limits(memory_bytes=GIBIBYTE, cpus=0.5, pids=64)))
            assert await asyncio.to_thread(limits, handle.id) == [GIBIBYTE, 500_000_000, 64]
            await handle.adopt(Spec())
            memory, cpus, pids = await asyncio.to_thread(limits, handle.id)
            assert (memory > 1 << 60, cpus >= 10**9, pids <= 0) == (True, True, True)
            assert (await handle.run(Shell("sleep 1000 &\n" * 100 + "echo survived"))).stdout == b"survived\n"
            with pytest.raises(SpecError, match="does not take these limits"):
                await handle.adopt(Spec(limits=Limits(memory_bytes=1 << 20)))
            assert (await handle.run(Exec(("true",)))).ok

    asyncio.run(check())


def limits(container: str) -> list[int]:
    shown = docker(
        "inspect", "--format", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}", container
    )
    return [int(word) for word in shown.split()]


def test_no_limit_is_the_most_there_is_for_a_daemon_that_takes_zero_for_as_it_was() -> None:
    some = Limits(memory_bytes=GIBIBYTE, cpus=0.5, pids=64)
    assert changed(some, some, 4) == {}
    assert changed(Limits(), some, 4) == {"Memory": GIBIBYTE, "MemorySwap": GIBIBYTE, "NanoCpus": 500_000_000, "PidsLimit": 64}
    lifted = changed(some, Limits(), 4)
    assert lifted == {"Memory": 1 << 62, "MemorySwap": 1 << 62, "NanoCpus": 4_000_000_000, "PidsLimit": -1}
    shown: dict[str, Any] = {"Config": {"Image": "x"}, "HostConfig": lifted}
    assert spec_of(shown).limits == Limits(cpus=4.0)
