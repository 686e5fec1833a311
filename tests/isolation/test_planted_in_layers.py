"""What a rollout leaves in its files for the next life: links, files and mounts in the way of the root built over them."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from excise.action import Shell
from excise.sandbox import Sandbox
from excise.spec import Mount, Spec
from excise.substrates.namespace import NamespaceSubstrate
from reachable import reachable

PLANTED = (
    # Where the kernel's file systems, /tmp and /dev are mounted: they cannot be moved away, and what is around them may be.
    "rm -rf /dev /proc /sys /tmp; mv /dev /d; mv /tmp /t; rmdir /tmp; ln -sfn /canary /tmp; ln -sfn /canary /dev",
    "mv /var /v; ln -s / /var; ln -s /proc/1/root /x; ln -s /proc/self/cwd/.. /y",
    # Where the working directory and a mount are.
    "cd /; mv /made /elsewhere; ln -s /canary/made /made; mv /shown-in /away; ln -s /canary /shown-in",
    "cd /; mv /made /elsewhere; ln -s ../../../../../../canary /made; mv /shown-in /away; ln -s .. /shown-in",
    "cd /; mv /shown-in /away; mkdir /shown-in; ln -s /proc/self/fd/0 /shown-in/data",
    "cd /; mv /made /elsewhere; ln -s /dev /made; mv /shown-in /away; ln -s /dev /shown-in",
    "cd /; mv /made /elsewhere; ln -s /sys /made; mv /shown-in /away; mkdir /shown-in; ln -s / /shown-in/data",
    # What roots are built on.
    "mkdir -p /top/upper /new /root /0; ln -s /canary /upper; ln -s /canary /dev/shm/tmp; ln -s /canary /tmp/shm",
    "chmod 0 /; chmod 0 /tmp /dev/shm; chown 65534 /tmp",
    "mount -t tmpfs none /mnt; umount -l /proc; umount -l /dev; umount -l /tmp; pivot_root / /mnt",
)
"""Attempts of the sandbox's root; whether the kernel lets them does not matter."""


LOOK = """
pwd; cat /shown-in/data/file; echo
stat -f -c %T /tmp /dev/shm /proc /sys /dev/pts
test -c /dev/null && echo null
head -c 1 /proc/keys | wc -c
(echo x > /proc/sys/kernel/hostname) 2>/dev/null || echo protected
"""


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


@pytest.mark.parametrize("script", PLANTED)
def test_the_next_life_is_not_led_astray(script: str, tmp_path: Path) -> None:
    """Everything is where it belongs: in the sandbox that was reset, in a fork, in the one that goes on; nothing is outside."""
    canary = Path("/canary")
    assert not canary.exists()
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("shown")
    reachable(data)
    spec = Spec(workdir="/made/here", mounts=(Mount(str(data), "/shown-in/data"),))

    async def check(box: Sandbox, *, fresh: bool) -> None:
        seen = await box.run(LOOK)
        words = seen.stdout.decode().split()
        assert words[:2] == ["/made/here", "shown"], (script, seen.text)
        assert words[2:] == ["tmpfs", "tmpfs", "proc", "sysfs", "devpts", "null", "0", "protected"], (script, seen.text)
        if fresh:
            assert (await box.run("ls -A /tmp /dev/shm; stat -c %a /tmp")).stdout.split() == [b"/dev/shm:", b"/tmp:", b"1777"]

    async def main() -> None:
        substrate = NamespaceSubstrate(prove=True)
        try:
            async with Sandbox(substrate, spec) as box:
                clean = await box.snapshot()
                await box.run(script)
                planted = await box.snapshot()
                await check(box, fresh=False)
                async with Sandbox(substrate, planted) as child:
                    await check(child, fresh=True)
                await box.reset(planted)
                await check(box, fresh=True)
                await box.run(script)
                await box.reset(clean)
                await check(box, fresh=True)
                assert (await box.run(Shell("test ! -e /elsewhere && test ! -e /away && test ! -L /made"))).ok
        finally:
            await substrate.close()

    asyncio.run(main())
    assert not canary.exists()
    assert sorted(os.listdir(data)) == ["file"]  # noqa: PTH208 - names are what counts


@pytest.mark.parametrize("leads_to", ["/", "/dev", "/proc/1/root", "/dev/null"])
def test_a_mount_that_only_the_next_life_has_is_where_it_belongs(leads_to: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("shown")
    reachable(tmp_path)
    mounts = (Mount(str(tmp_path), "/tests"), Mount(str(tmp_path / "file"), "/test"))

    async def main() -> None:
        substrate = NamespaceSubstrate()
        try:
            async with Sandbox(substrate) as box:
                await box.run(f"ln -s {leads_to} /tests; ln -s {leads_to} /test")
                planted = await box.snapshot()
            spec = msgspec.structs.replace(planted.spec, mounts=mounts)
            async with Sandbox(substrate, msgspec.structs.replace(planted, spec=spec)) as child:
                assert (await child.run("cat /tests/file /test > /dev/null; cat /tests/file /test")).text == "shownshown"
        finally:
            await substrate.close()

    asyncio.run(main())


RESISTS = """
import ctypes, os, signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork():
    for _ in range(200):
        pid = os.fork()
        if pid == 0: os.setsid(); time.sleep(1000)
    while True:
        if os.fork() == 0: os._exit(0)
        try: os.waitpid(-1, os.WNOHANG)
        except ChildProcessError: pass
libc = ctypes.CDLL(None)
while True:  # one that traces its parent, and holds it
    libc.ptrace(16, os.getppid(), 0, 0); time.sleep(0.001)
"""


def test_processes_that_resist_do_not_outlive_a_reset() -> None:
    async def main() -> None:
        substrate = NamespaceSubstrate(prove=True)
        try:
            async with Sandbox(substrate) as box:
                snapshot = await box.snapshot()
                for _ in range(3):
                    await box.write("/resists.py", RESISTS)
                    started = await box.run("python3 /resists.py > /dev/null 2>&1 & sleep 0.2; echo started")
                    assert started.stdout == b"started\n"
                    await box.reset(snapshot)
                    alive = await box.run("for d in /proc/[0-9]*; do cat $d/comm; done 2>/dev/null | grep -c python || true")
                    assert alive.stdout == b"0\n"
        finally:
            await substrate.close()

    asyncio.run(main())
