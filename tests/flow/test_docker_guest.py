"""The guest in a container beyond the contract: who can end it, how it gets there, and what is left when its client dies."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from excise.action import End, Exec, Shell, Write
from excise.errors import CreateError, SandboxLost, SpecError, Unsupported
from excise.guest.programs import program
from excise.registry import make
from excise.spec import Limits, Mount, Secret, Spec
from excise.substrates.docker import DockerGuestSubstrate, guest
from excise.substrates.docker.container import Prepared, config, with_guest
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.guest import DockerGuestHandle

MEBIBYTE = 1 << 20
GONE_S = 20.0


def test_the_guest_is_root_and_pid_1_and_its_stdin_ends_with_its_client() -> None:
    spec = Spec(user="me", mounts=(Mount("/data", "/data"),), env={"TOKEN": "of the spec"}, secrets={"KEY": Secret("hidden")})
    plain = config(spec, Prepared(reference="x"), labels={}, lease_s=1, request_id="r", runtime=None)
    made = with_guest(plain, "/.guest", Path("/opt/guest"))
    assert (made["Entrypoint"], made["User"], made["StdinOnce"], made["HostConfig"]["AutoRemove"]) == (
        ["/.guest"],
        "0:0",
        True,
        True,
    )
    assert [mount["Target"] for mount in made["HostConfig"]["Mounts"]] == ["/data", "/.guest"]
    assert made["HostConfig"]["Mounts"][1]["ReadOnly"]
    assert len(with_guest(plain, "/.guest", None)["HostConfig"]["Mounts"]) == 1
    assert "of the spec" not in json.dumps(made)
    assert "hidden" not in json.dumps(made)
    assert plain["Entrypoint"] != made["Entrypoint"]  # what was given is not changed


# ---- with a daemon


@pytest.fixture
def docker(runs_here: Callable[[str], None]) -> None:
    runs_here("docker+guest")


@asynccontextmanager
async def sandbox(
    spec: Spec | None = None, substrate: DockerGuestSubstrate | None = None
) -> AsyncGenerator[tuple[DockerGuestSubstrate, DockerGuestHandle]]:
    substrate = substrate or DockerGuestSubstrate()
    terms: dict[str, Any] = {"deadline_s": 60.0, "lease_s": 600.0, "labels": {}, "request_id": uuid.uuid4().hex}
    try:
        handle = await substrate.create(spec or Spec(), **terms)
        try:
            await handle.ready()
            yield substrate, handle
        finally:
            await handle.close()
    finally:
        await substrate.close()


def inspected(id: str) -> dict[str, Any] | None:
    seen = subprocess.run(["docker", "inspect", id], capture_output=True, check=False, timeout=60)
    return json.loads(seen.stdout)[0] if seen.returncode == 0 else None


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("script", ["kill -9 -1", "pkill -9 -f excise-guest", "kill -9 1; kill 1"])
def test_no_signal_from_inside_ends_the_sandbox(script: str) -> None:
    async def scenario() -> None:
        async with sandbox() as (_, handle):
            await handle.run(Shell(script, timeout_s=20))
            assert (await handle.run(Shell("echo alive", timeout_s=20))).stdout == b"alive\n"

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_what_is_root_inside_cannot_look_into_the_guest() -> None:
    async def scenario() -> None:
        async with sandbox() as (_, handle):
            for path in ("/proc/1/mem", "/proc/1/maps", "/proc/1/fd/0", "/proc/1/environ"):
                seen = await handle.run(Shell(f"head -c 1 {path} && echo read", timeout_s=20))
                assert b"read" not in seen.stdout, path
            seen = await handle.run(Shell("head -c 1 /proc/$$/mem || head -c 1 /proc/$$/environ && echo read", session="main"))
            assert b"read" not in seen.stdout, "a session's shell"
            assert (await handle.run(Exec(("id", "-u")))).stdout == b"0\n"

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_daemon_that_does_not_see_our_files_is_sent_the_guest() -> None:
    async def scenario() -> None:
        substrate = DockerGuestSubstrate()
        await substrate.probe()
        substrate._binds = False
        async with sandbox(substrate=substrate) as (_, handle):
            assert (await handle.run(Shell("echo sent"))).stdout == b"sent\n"

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_that_it_does_not_see_them_is_found_out_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a client in a container that was given the daemon's socket."""
    packed = guest._packed
    monkeypatch.setattr(guest, "_packed", lambda _: packed(program("excise-guest")))

    async def scenario() -> None:
        substrate = DockerGuestSubstrate()
        await substrate.probe()
        substrate._program = Path("/nowhere/on-the-daemon's-machine/excise-guest")
        async with sandbox(substrate=substrate) as (_, handle):
            assert (await handle.run(Shell("echo sent"))).stdout == b"sent\n"
            assert not substrate._binds

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_the_containers_death_is_a_loss_and_never_a_result() -> None:
    async def scenario() -> None:
        async with sandbox() as (_, handle):
            running = asyncio.ensure_future(handle.run(Shell("touch up; sleep 1000")))
            await handle.run(Shell("while test ! -e up; do sleep 0.02; done", timeout_s=20))
            subprocess.run(["docker", "kill", handle.id], check=True, capture_output=True, timeout=60)
            with pytest.raises(SandboxLost, match="its container ended"):
                await asyncio.wait_for(running, 20)
            with pytest.raises(SandboxLost):
                await handle.run(Exec(("true",)))

    asyncio.run(scenario())


CLIENT = textwrap.dedent("""
    import asyncio, sys
    from excise.action import Shell
    from excise.registry import make
    from excise.spec import Spec

    async def main():
        substrate = make("docker+guest")
        handle = await substrate.create(Spec(), deadline_s=60, lease_s=600, labels={}, request_id=sys.argv[1])
        await handle.ready()
        await handle.run(Shell("setsid sleep 1000 >/dev/null 2>&1 </dev/null &"))
        print(handle.id, flush=True)
        await handle.run(Shell("sleep 1000"))

    asyncio.run(main())
""")


async def removed(id: str) -> None:
    """Returns when the daemon says that it is; it is not asked again and again."""
    engine = Engine(None)
    await engine.docker()
    try:
        await asyncio.wait_for(engine._gone(id), GONE_S)
    finally:
        await engine.close()


@pytest.mark.usefixtures("docker")
def test_a_client_that_is_killed_leaves_no_container() -> None:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, uuid.uuid4().hex], stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        with client.stdout:
            made = client.stdout.readline().strip()
        assert inspected(made) is not None
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait()
    asyncio.run(removed(made))
    assert inspected(made) is None


@pytest.mark.usefixtures("docker")
def test_its_sandboxes_are_not_attached_to() -> None:
    async def scenario() -> None:
        async with sandbox() as (substrate, handle):
            with pytest.raises(Unsupported, match="end with the process that made them"):
                await substrate.attach(handle.id)

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_another_clients_request_is_not_taken_over() -> None:
    async def scenario() -> None:
        request_id = uuid.uuid4().hex
        terms: dict[str, Any] = {"deadline_s": 60.0, "lease_s": 600.0, "labels": {}, "request_id": request_id}
        first, second = DockerGuestSubstrate(), DockerGuestSubstrate()
        try:
            handle = await first.create(Spec(), **terms)
            await handle.ready()
            with pytest.raises(CreateError, match="already in use"):
                await second.create(Spec(), **terms)
            assert (await handle.run(Exec(("true",)))).ok  # and the first one's is not removed for it
            await handle.close()
        finally:
            await first.close()
            await second.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_limits_strike_the_action_and_not_the_guest() -> None:
    async def scenario() -> None:
        async with sandbox(Spec(limits=Limits(memory_bytes=64 * MEBIBYTE, pids=64))) as (_, handle):
            for _ in range(3):
                seen = await handle.run(Shell("head -c 300000000 /dev/zero | tail -n 1 | wc -c", timeout_s=60))
                assert seen.end is End.OUT_OF_MEMORY or not seen.ok or seen.stdout.strip() == b"0"
                bomb = await handle.start(Shell("i=0; while test $i -lt 200; do sleep 1000 & i=$((i+1)); done", timeout_s=20))
                assert (await bomb.wait()).end is End.OUT_OF_PIDS
                await bomb.kill()  # what it left running as well
            assert (await handle.run(Write("file", b"x" * MEBIBYTE))).ok
            assert (await handle.run(Shell("wc -c <file"))).stdout.strip() == b"1048576"

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_an_unknown_image_is_a_sentence() -> None:
    async def scenario() -> None:
        async with sandbox(Spec(image="excise.invalid/none:1")):
            pass

    with pytest.raises(SpecError, match=r"holds no image 'excise.invalid/none:1'"):
        asyncio.run(scenario())


def test_the_address_makes_it() -> None:
    substrate = make("docker+guest?runtime=runc")
    assert (type(substrate), substrate.address) == (DockerGuestSubstrate, "docker+guest?runtime=runc")
