"""`microvm`: machines that do not boot, panic, are killed or lose their client; what is told then, and that nothing is left."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.action import Exec, Shell
from excise.api import connect
from excise.errors import CreateError, SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec
from excise.substrates.microvm import MicrovmSubstrate, machines
from excise.substrates.microvm.handle import MicrovmHandle
from excise.vmm.accel import accel, probe
from excise.vmm.kept import place
from excise.vmm.kernel import kernel

LONG_S = 100.0
BASE = Spec(image="excise/base")
SMALL = Limits(memory_bytes=64 << 20)
"""All memory of a machine that may know secrets is zeroed at its boot: little is soon done."""


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("microvm")


def with_substrate(work: Callable[[MicrovmSubstrate], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        substrate = MicrovmSubstrate(**options)
        try:
            await work(substrate)
        finally:
            await substrate.close()

    asyncio.run(run())


async def made(substrate: MicrovmSubstrate, spec: Spec = BASE, deadline_s: float = LONG_S) -> MicrovmHandle:
    handle = await substrate.create(spec, deadline_s=deadline_s, lease_s=600, labels={}, request_id=uuid.uuid4().hex)
    await handle.ready()
    return handle


def ended(pid: int) -> bool:
    """Whether this process is over, or soon is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 20)[0])
    finally:
        os.close(descriptor)


# ---- that does not boot


def test_one_that_does_not_boot_in_time_is_told_with_its_console() -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        kind, _ = await substrate.kind(BASE)  # the rest is not what is late
        if kind.host.accel == "kvm":
            pytest.skip("a kernel boots in no time under KVM")
        with pytest.raises(CreateError, match=r"did not boot in .* s: the virtual machine does not answer; its console"):
            await made(substrate, deadline_s=1.5)

    with_substrate(work, cold=True)


def test_a_kernel_that_panics_is_told_with_its_console(tmp_path: Path) -> None:
    nothing = tmp_path / "initrd"
    nothing.write_bytes(bytes(512))

    async def work(substrate: MicrovmSubstrate) -> None:
        kind, _ = await substrate.kind(BASE)
        broken = msgspec.structs.replace(kind, host=msgspec.structs.replace(kind.host, initrd=str(nothing)))
        running = await machines.boot(broken)
        try:
            running.link.greet({}, "/", None)
            with pytest.raises(CreateError, match=r"(?s)the virtual machine's kernel panicked; .*Unable to mount root fs"):
                await machines.greeted(running, LONG_S)
        finally:
            await running.close()
        assert ended(running.machine.pid)

    with_substrate(work)


def test_a_disk_that_is_none_is_told_by_the_boot_program(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))

    async def work(substrate: MicrovmSubstrate) -> None:
        kind, _ = await substrate.kind(BASE)
        running = await machines.boot(msgspec.structs.replace(kind, disk=str(disk)))
        try:
            running.link.greet({}, "/", None)
            with pytest.raises(CreateError, match=r"(?s)excise-boot: mount squashfs on /lower"):
                await machines.greeted(running, LONG_S)
        finally:
            await running.close()

    with_substrate(work)


def test_a_kernel_that_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        with pytest.raises(SubstrateError, match=r"nowhere cannot be read .* name another one, or unset EXCISE_KERNEL"):
            await substrate.probe()

    with_substrate(work, kernel=str(tmp_path / "nowhere"))


def test_a_kernel_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no kernel\n" * 1000)

    async def work(substrate: MicrovmSubstrate) -> None:
        with pytest.raises(SubstrateError, match="is no bzImage"):
            await substrate.probe()

    with_substrate(work, kernel=str(tmp_path / "text"))


def test_kvm_is_used_only_where_a_kernel_boots_under_it(tmp_path: Path) -> None:
    async def work() -> None:
        found = await kernel()
        missing = await accel(found, tmp_path / "kvm")
        assert (missing.name, missing.why) == ("tcg", f"there is no {tmp_path / 'kvm'}")
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return
        tried = await probe(found, 20.0)
        assert (tried.name == "kvm") == (tried.why == "")
        if tried.name == "tcg":
            assert "/dev/kvm exists, but" in tried.why

    asyncio.run(work())


# ---- that dies


def test_a_machine_that_is_killed_under_an_action_is_lost() -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        handle = await made(substrate)
        action = asyncio.ensure_future(handle.run(Exec(("sleep", "1000"))))
        await handle.alive()
        os.kill(handle.running.machine.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost, match="QEMU was ended by SIGKILL; its console's last lines"):
            await action
        with pytest.raises(SandboxLost):
            await handle.run(Exec(("true",)))
        await handle.close()

    with_substrate(work)


_CLIENT = """
import asyncio, sys, uuid
from excise.spec import Spec
from excise.substrates.microvm import MicrovmSubstrate

async def main():
    substrate = MicrovmSubstrate()
    options = dict(deadline_s=100, lease_s=600, labels={}, request_id=uuid.uuid4().hex)
    handle = await substrate.create(Spec(image="excise/base"), **options)
    await handle.ready()
    snapshot = await handle.snapshot()
    await handle.pause()  # one that stands still does not notice that nobody is there
    print(handle.running.machine.pid, snapshot.id, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_nothing_outlives_a_client_that_is_killed() -> None:
    client = subprocess.Popen([sys.executable, "-c", _CLIENT], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    pid, snapshot = client.stdout.readline().split()
    client.kill()
    client.wait()
    client.stdout.close()
    assert ended(int(pid))

    async def work(substrate: MicrovmSubstrate) -> None:
        assert f"snapshot {snapshot}" in await substrate.collect()
        assert not (place("snapshots") / snapshot).exists()

    with_substrate(work)


def test_a_create_that_is_cancelled_leaves_no_machine() -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        await (await made(substrate)).close()
        creating = asyncio.ensure_future(made(substrate))
        await asyncio.sleep(0.03)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating

    with_substrate(work)  # and conftest finds no process


# ---- states


def test_a_session_a_job_and_an_open_file_go_on_in_a_copy() -> None:
    async def work() -> None:
        async with connect("microvm") as substrate, Sandbox(substrate, BASE, ttl_s=600, wait_s=LONG_S) as box:
            await box.run("exec 9>/tmp/open; counted=41; sleep 1000 & cd /var", session="main")
            async with box.fork(2) as group:
                for child in group:
                    seen = await child.run(
                        "echo $((counted + 1)) $PWD; jobs -r | wc -l; echo on >&9; cat /tmp/open", session="main"
                    )
                    assert seen.stdout == b"42 /var\n1\non\n"

    asyncio.run(work())


def test_what_is_said_after_a_copy_of_an_action_in_flight_is_heard_by_nobody() -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        handle = await made(substrate)
        action = Shell("while :; do echo line; sleep 0.01; done", timeout_s=6)
        talking = asyncio.ensure_future(handle.run(action))
        await handle.run(Exec(("sleep", "0.3")))
        snapshot = await handle.snapshot()
        copy = await substrate.create(snapshot, deadline_s=LONG_S, lease_s=600, labels={}, request_id="copy")
        await copy.ready()
        assert (await copy.run(Shell("sleep 1; echo mine"))).stdout == b"mine\n"
        await copy.close()
        assert set((await talking).stdout.split()) == {b"line"}
        await substrate.discard(snapshot)
        await handle.close()

    with_substrate(work)


def test_a_snapshot_of_one_that_knows_a_secret_holds_it_nowhere() -> None:
    token = f"token-{uuid.uuid4().hex}"

    async def work(substrate: MicrovmSubstrate) -> None:
        handle = await made(substrate, Spec(image="excise/base", secrets={"TOKEN": Secret(token)}, limits=SMALL))
        assert (await handle.run(Shell('export COPY="x$TOKEN"; env -0', session="main"))).ok
        snapshot = await handle.snapshot()
        assert snapshot.carries == "files"
        for name in ("memory", "device", "record.json"):
            assert token.encode() not in (place("snapshots") / snapshot.id / name).read_bytes()
        await handle.reset(snapshot)
        assert (await handle.run(Shell('printf %s "$TOKEN"'))).stdout.decode() == token

    with_substrate(work)


def test_a_secret_too_short_to_be_found_is_refused() -> None:
    async def work(substrate: MicrovmSubstrate) -> None:
        handle = await made(substrate, Spec(image="excise/base", secrets={"PIN": Secret("1234")}, limits=SMALL))
        with pytest.raises(SpecError, match="fewer than 6 bytes"):
            await handle.snapshot()

    with_substrate(work)
