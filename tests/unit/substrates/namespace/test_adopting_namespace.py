"""A namespace sandbox that takes on other terms: what the kernel then holds it to, and what is refused; whether it lives."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec, Shell
from excise.adoption import ABILITY
from excise.errors import SandboxLost, SpecError
from excise.host.descendants import Tree
from excise.network.policy import Policy
from excise.spec import Limits, Spec
from excise.substrates.namespace import cgroups
from excise.substrates.namespace.cgroups import Groups
from excise.substrates.namespace.handle import NamespaceHandle
from excise.substrates.namespace.limiting import Limiting
from excise.substrates.namespace.substrate import NamespaceSubstrate

TERMS: dict[str, Any] = {"deadline_s": 30.0, "lease_s": 600.0, "labels": {}}
NEEDS = frozenset({ABILITY})
MEBIBYTE = 1 << 20
PORT = 3128
LISTEN = (
    "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1), LocalPort => 3128, "
    "ReuseAddr => 1) or exit 9; open(F, q(>), q(/tmp/up)); close(F); sleep 1000' & "
    "while test ! -e /tmp/up; do kill -0 $! || exit 1; sleep 0.02; done"
)


@pytest.fixture(autouse=True)
def _there(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


def run(body: Callable[[NamespaceSubstrate], Awaitable[None]]) -> None:
    async def whole() -> None:
        substrate = NamespaceSubstrate()
        try:
            await asyncio.wait_for(body(substrate), 60)
        finally:
            await substrate.close()

    asyncio.run(whole())


async def made(substrate: NamespaceSubstrate, spec: Spec) -> NamespaceHandle:
    handle = await substrate.create(spec, request_id=os.urandom(8).hex(), **TERMS)
    await handle.ready()
    return handle


def limited(handle: NamespaceHandle) -> dict[str, str]:
    """What the kernel says of the limits of its groups."""
    found: dict[str, str] = {}
    files = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max", "pids.max")
    for group in handle._limiting._places.values():
        found |= {file: (group / file).read_text().strip() for file in files if (group / file).exists()}
    return found


def first_process(substrate: NamespaceSubstrate) -> int:
    """The guest of the only sandbox."""
    assert substrate._launcher is not None
    (pid,) = Tree().children(substrate._launcher.pid)
    return pid


def test_limits_are_written_lowered_raised_and_lifted() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        capabilities = await substrate.probe()
        if not {"memory_bytes", "cpus", "pids"} <= capabilities.adopts:
            pytest.skip("no control groups here")
        handle = await made(substrate, Spec(needs=NEEDS))
        unlimited = limited(handle)
        assert unlimited
        seen = [unlimited]
        for megabytes, cpus, pids in ((64, 0.5, 32), (32, 0.25, 16), (128, 1.5, 64)):
            await handle.adopt(Spec(limits=Limits(memory_bytes=megabytes * MEBIBYTE, cpus=cpus, pids=pids)))
            now = limited(handle)
            assert str(megabytes * MEBIBYTE) in now.values()
            assert str(pids) == now["pids.max"]
            assert any(value.split()[0] == str(round(cpus * 100_000)) for file, value in now.items() if "cpu" in file)
            seen.append(now)
        assert len({tuple(one.items()) for one in seen}) == len(seen)
        await handle.adopt(Spec())
        assert limited(handle) == unlimited
        await handle.close()
        assert limited(handle) == {}

    run(body)


def test_one_that_was_not_prepared_refuses_what_it_has_nothing_for_and_lives_on() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        handle = await made(substrate, Spec(limits=Limits(pids=64)))
        for spec, lacks in (
            (Spec(limits=Limits(pids=64, memory_bytes=64 * MEBIBYTE)), "no control group for memory_bytes"),
            (Spec(limits=Limits(pids=64), network="open"), "without a way out"),
        ):
            with pytest.raises(SpecError, match=lacks):
                await handle.adopt(spec)
        await handle.adopt(Spec(limits=Limits(pids=32)))
        assert limited(handle)["pids.max"] == "32"
        assert (await handle.run(Exec(("true",)))).ok

    run(body)


def test_more_memory_than_the_limit_to_come_is_a_lost_sandbox_and_not_a_limit_that_is_not_there() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        if not any((tree.top / "memory.usage_in_bytes").exists() for tree in cgroups.trees()):
            pytest.skip("on v2 the kernel takes the limit, and kills for it")
        handle = await made(substrate, Spec(needs=NEEDS))
        assert (await handle.run(Shell("head -c 134217728 /dev/zero > /dev/shm/held"))).ok
        with pytest.raises(SandboxLost, match="more memory than the 33554432 bytes"):
            await handle.adopt(Spec(limits=Limits(memory_bytes=32 * MEBIBYTE)))
        with pytest.raises(SandboxLost):
            await handle.run(Exec(("true",)))

    run(body)


def test_without_a_network_the_ways_port_is_free_for_programs_inside() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        handle = await made(substrate, Spec(needs=NEEDS))
        with pytest.raises(ConnectionRefusedError):
            await handle.connect(PORT)
        await handle.adopt(Spec(network="open", needs=NEEDS))
        await (await handle.connect(PORT)).close()
        await handle.adopt(Spec(network="none", needs=NEEDS))
        with pytest.raises(ConnectionRefusedError):
            await handle.connect(PORT)
        # As one that never had a way out: a server of the rollout's own may have the port.
        seen = await handle.run(Shell(LISTEN, timeout_s=20))
        assert seen.ok, seen.text
        await (await handle.connect(PORT)).close()
        with pytest.raises(SandboxLost, match="something inside has it"):
            await handle._way.change(Policy("open"))

    run(body)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guest_that_is_dead_or_stands_still_is_not_alive(number: int) -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        handle = await made(substrate, Spec())
        await handle.alive()
        pid = first_process(substrate)
        os.kill(pid, number)
        if number == signal.SIGKILL:
            with pytest.raises(SandboxLost):
                await handle.alive()
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await handle.alive()
        os.kill(pid, signal.SIGCONT)
        await handle.alive()
        assert (await handle.run(Exec(("true",)))).ok

    run(body)


def test_what_was_adopted_and_closed_leaves_no_descriptor() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        async def once() -> None:
            handle = await made(substrate, Spec(needs=NEEDS))
            await handle.adopt(Spec(network="open", needs=NEEDS))
            await handle.adopt(Spec(needs=NEEDS))
            await handle.close()

        await once()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(4):
            await once()
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    run(body)


def test_no_limit_is_said_as_each_kernel_wants_it() -> None:
    said = {
        (controller, version): cgroups.values(controller, None, version, swap=True)
        for controller in cgroups.CONTROLLERS
        for version in (1, 2)
    }
    assert said == {
        ("memory", 1): (("memory.limit_in_bytes", "-1"), ("memory.memsw.limit_in_bytes", "-1")),
        ("memory", 2): (("memory.max", "max"), ("memory.swap.max", "max")),
        ("cpu", 1): (("cpu.cfs_quota_us", "-1"),),
        ("cpu", 2): (("cpu.max", "max"),),
        ("pids", 1): (("pids.max", "max"),),
        ("pids", 2): (("pids.max", "max"),),
    }


def test_on_v2_one_group_has_all_limits_and_only_what_differs_is_written(tmp_path: Path) -> None:
    groups = Groups(dict.fromkeys(cgroups.CONTROLLERS, tmp_path), dict.fromkeys(cgroups.CONTROLLERS, 2), swap=True)
    limiting = Limiting(groups, dict.fromkeys(cgroups.CONTROLLERS, tmp_path), Limits(pids=64))
    (tmp_path / "memory.current").write_text("4096\n")

    def written(limits: Limits) -> dict[str, str]:
        for file in ("memory.max", "memory.swap.max", "cpu.max", "pids.max"):
            (tmp_path / file).write_text("")
        asyncio.run(limiting.change(limits))
        return {path.name: text for path in tmp_path.iterdir() if path.name.endswith("max") and (text := path.read_text())}

    assert written(Limits(memory_bytes=1 << 20, pids=64)) == {"memory.max": "1048576", "memory.swap.max": "0"}
    assert written(Limits(memory_bytes=1 << 10, cpus=1.5, pids=64)) == {
        "memory.max": "1024",  # less than is in use
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
    }
    assert written(Limits()) == {"memory.max": "max", "memory.swap.max": "max", "cpu.max": "max", "pids.max": "max"}
    assert written(Limits()) == {}


def test_a_group_that_is_gone_is_a_lost_sandbox(tmp_path: Path) -> None:
    groups = Groups({"pids": tmp_path}, {"pids": 2})
    limiting = Limiting(groups, {"pids": tmp_path / "gone"}, Limits())
    with pytest.raises(SandboxLost, match="cannot be changed"):
        asyncio.run(limiting.change(Limits(pids=1)))
