"""Whoever is killed, nothing of a sandbox is left: SIGKILL of the client, a keeper, the supervisor and a runner."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import Sandbox, SandboxLost
from excise.host.descendants import Tree
from excise.host.sandboxes import owner_of
from excise.registry import make
from excise.storage.home import state_dir

PATIENCE_S = 20

CLIENT = """
import asyncio, sys
from excise import Sandbox
async def main():
    async with Sandbox(sys.argv[1]) as box:
        await box.run("setsid sleep 1000 >/dev/null 2>&1 & sleep 1000 &")
        if sys.argv[1] != "bubblewrap":
            await box.run(":", session="main")
        async for event in (await box.start("echo up; sleep 1000 & sleep 1000")).events():
            print("up", flush=True)
asyncio.run(main())
"""


def dead(pids: list[int]) -> bool:
    """Wait for all of them to end; whether they did."""
    deadline = PATIENCE_S
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([descriptor], [], [], deadline)
        os.close(descriptor)
        if not ended:
            return False
    return True


def below(pid: int) -> list[int]:
    return Tree().below((pid,))


@pytest.mark.parametrize("address", ["local", "chroot", "chroot+guest", "bubblewrap"])
def test_a_killed_client_leaves_no_process_and_no_directory(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    with subprocess.Popen([sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        try:
            assert client.stdout.readline() == b"up\n"
            owner = owner_of(client.pid)
            pids = below(client.pid)
            assert len(pids) >= 4
        finally:
            client.kill()
    assert dead(pids)
    left = [path for path in state_dir().iterdir() if owner in path.name]
    if address == "bubblewrap":
        # Its close commands are gc's to run, so its directory stays until then.
        assert left
        asyncio.run(collect(address))
        left = [path for path in state_dir().iterdir() if owner in path.name]
    assert left == []


async def collect(address: str) -> tuple[str, ...]:
    substrate = make(address)
    try:
        return await substrate.collect()
    finally:
        await substrate.close()


def test_collect_spares_the_living_and_takes_the_dead() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            abandoned = state_dir() / "local-999999999-1-abcdefabcdef"
            (abandoned / "work").mkdir(parents=True)
            assert await collect("local") == (abandoned.name,)
            assert not abandoned.exists()
            assert (await box.run("pwd")).ok

    asyncio.run(check())


def supervisor_of(pid: int) -> int:
    """The one child of ours that runs the supervisor's program."""
    children = [
        child for child in Tree().children(pid) if b"excise.host.supervisor" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert len(children) == 1
    return children[0]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_killed_keeper_or_runner_is_a_lost_sandbox_never_a_failed_command(generation: int) -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            action = asyncio.ensure_future(box.run("echo begun; setsid sleep 1000 & sleep 1000"))
            tree = Tree()
            victims = (supervisor_of(os.getpid()),)
            while len(tree.below(victims)) < 4:
                await asyncio.sleep(0.01)
            everything = tree.below(victims)
            for _ in range(generation):
                victims = tuple(pid for victim in victims for pid in tree.children(victim))
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await action
            if generation == 1:
                assert await asyncio.to_thread(dead, everything)
                with pytest.raises(SandboxLost):
                    await box.run("true")
        assert await asyncio.to_thread(dead, everything)

    asyncio.run(check())


def test_a_killed_supervisor_does_not_take_its_sandboxes_along_and_close_still_leaves_nothing() -> None:
    async def check() -> None:
        substrate = make("local")
        async with Sandbox(substrate) as box:
            supervisor = supervisor_of(os.getpid())
            pids = below(supervisor)
            os.kill(supervisor, signal.SIGKILL)
            assert (await box.run("echo alive")).stdout == b"alive\n"
            async with Sandbox(substrate) as other:
                assert (await other.run("echo new")).stdout == b"new\n"
            directory = Path((await box.run("pwd")).stdout.decode().strip()).parent
        assert dead(pids)
        assert not directory.exists()
        await substrate.close()

    asyncio.run(check())


def test_a_lease_that_nobody_renews_ends_the_sandbox() -> None:
    async def check() -> None:
        async with Sandbox("local", ttl_s=0.2) as box:
            with pytest.raises(SandboxLost):
                await box.run("sleep 1000")
        async with Sandbox("local", ttl_s=0.3) as box:
            await box.renew(1000)
            assert (await box.run("sleep 0.6")).ok

    asyncio.run(check())
