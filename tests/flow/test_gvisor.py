"""gVisor sandboxes as they are used, and what becomes of them when runsc, its kernel, its disk or its client fails."""

import asyncio
import os
import posixpath
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from excise.action import End, Exec, Write
from excise.api import connect
from excise.errors import CreateError, SandboxLost, SpecError, SubstrateError
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Allow, Limits, Mount, Spec, Step
from excise.storage.home import state_dir

BOTH = ("gvisor", "gvisor+guest")


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, runs_here: Callable[[str], None]) -> None:
    runs_here("gvisor+guest")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))  # type: ignore[arg-type]


def processes(kind: str) -> list[int]:
    """runsc's processes that are this test's: below our own."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            mine = str(state_dir()).encode() in b" ".join(words)
        except OSError:
            continue
        if mine and words[0].decode().endswith(kind):
            found.append(int(entry.name))
    return found


def left() -> list[str]:
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(state_dir()) in line]
    return [*map(str, state_dir().iterdir()), *mounts, *map(str, processes("runsc-sandbox") + processes("runsc-gofer"))]


# ---- a kernel of its own


@pytest.mark.parametrize("address", BOTH)
def test_its_kernel_is_not_the_hosts(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            found = await substrate.probe()
            assert found.kernel == "intercepted"
            assert set(found.versions) == {"runsc", "platform"}
            async with Sandbox(substrate, Spec(isolation="intercepted")) as box:
                assert (await box.run(["dmesg"])).text.count("gVisor") > 0
                assert (await box.run(["uname", "-r"])).text.strip() != os.uname().release
        assert left() == []

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_the_image_itself_is_never_written_to(address: str, tmp_path: Path) -> None:
    """Neither by what is mounted where the image has nothing, nor from inside."""

    async def scenario() -> None:
        async with connect(address) as substrate:
            spec = Spec(workdir="/made/here", mounts=(Mount(str(tmp_path), "/shown/there"),))
            async with Sandbox(substrate, spec) as box:
                seen = await box.run("pwd; ls -d /shown/there; touch /etc/passwd /new")
                assert seen.text.split() == ["/made/here", "/shown/there"]
            async with Sandbox(substrate, Spec()) as box:
                seen = await box.run("ls -d /made /shown /new /.excise-guest 2>/dev/null")
                assert seen.stdout.split() == ([b"/.excise-guest"] if "+" in address else [])
        async with Sandbox("chroot", Spec()) as plain:
            assert (await plain.run("ls -d /made /shown /new /.excise-guest 2>/dev/null")).stdout == b""

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_the_processor_limit_reaches_the_kernel_and_its_group_goes(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            if "cpus" not in (await substrate.probe()).limits:
                pytest.skip("this user has no control groups")
            async with Sandbox(substrate, Spec(limits=Limits(cpus=0.5))) as box:
                name = box.id
                groups = list(Path("/sys/fs/cgroup").glob(f"**/{name}"))
                quotas = [(group / "cpu.cfs_quota_us") for group in groups if (group / "cpu.cfs_quota_us").exists()]
                quotas += [(group / "cpu.max") for group in groups if (group / "cpu.max").exists()]
                assert [int(quota.read_text().split()[0]) for quota in quotas] == [50_000] * max(1, len(quotas))
            assert list(Path("/sys/fs/cgroup").glob(f"**/{name}")) == []

    run(scenario)


def test_a_full_disk_is_the_sandboxs_own_and_it_lives_on() -> None:
    async def scenario() -> None:
        async with Sandbox("gvisor+guest", Spec(limits=Limits(disk_bytes=16 << 20)), timeout_s=60) as box:
            seen = await box.run("head -c 64M /dev/zero > big")
            assert seen.end is End.OUT_OF_DISK
            assert (await box.run("rm big; echo more > small; cat small")).text == "more\n"

    run(scenario)


def test_a_limit_of_processes_strikes_the_action_and_cannot_be_lifted_from_inside() -> None:
    async def scenario() -> None:
        async with connect("gvisor+guest") as substrate:
            if "pids" not in (await substrate.probe()).limits:
                pytest.skip("this runsc has no groups of its own")
            async with Sandbox(substrate, Spec(limits=Limits(pids=16)), timeout_s=60) as box:
                seen = await box.run("for i in $(seq 64); do sleep 60 & done")
                assert seen.end is End.OUT_OF_PIDS
                assert (await box.run(["true"])).end is End.OUT_OF_PIDS  # what it left is still there
                handle = await substrate.create(
                    Spec(limits=Limits(pids=16)), deadline_s=50, lease_s=60, labels={}, request_id="other"
                )
                await handle.ready()
                tried = (
                    "ls /sys/fs/cgroup; mount -t cgroup2 none /mnt || mount -t cgroup none /mnt; find / -xdev -name 'pids.max'"
                )
                seen = await handle.run(Exec(("sh", "-c", tried)))
                assert seen.stdout == b""
                bomb = await handle.run(Exec(("sh", "-c", "b() { b | b & }; b; sleep 2"), timeout_s=20))
                assert not bomb.ok or bomb.still_running
                await handle.close()

    run(scenario)


# ---- what is missing


@pytest.mark.parametrize("address", BOTH)
def test_a_runsc_that_is_not_there_is_a_sentence_with_the_remedy(address: str, tmp_path: Path) -> None:
    other = tmp_path / "runsc"
    other.write_text("#!/bin/sh\necho something else\n")
    other.chmod(0o755)

    async def scenario() -> None:
        for named in (tmp_path / "absent", tmp_path, other):
            substrate = make(f"{address}?runsc={named}")
            with pytest.raises(SubstrateError, match="python -m cluster runsc"):
                await substrate.probe()
            await substrate.close()

    run(scenario)


def test_without_a_runsc_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def scenario() -> None:
        with pytest.raises(SubstrateError, match="neither on PATH nor in the cache"):
            await make("gvisor").probe()

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_runsc_that_fails_is_told_with_what_it_said(address: str, tmp_path: Path) -> None:
    broken = tmp_path / "runsc"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo runsc version v0; exit ;; esac\necho all is lost >&2\nexit 3\n'
    )
    broken.chmod(stat.S_IRWXU)

    async def scenario() -> None:
        substrate = make(f"{address}?runsc={broken}")
        with pytest.raises(SubstrateError, match="all is lost"):
            await substrate.probe()
        await substrate.close()
        assert left() == []

    run(scenario)


def test_options_that_are_none() -> None:
    with pytest.raises(SpecError, match="platform=magic"):
        make("gvisor?platform=magic")


# ---- what dies


async def lost(action: Callable[[], Awaitable[Any]]) -> str:
    with pytest.raises(SandboxLost) as told:
        await action()
    return str(told.value)


@pytest.mark.parametrize("victim", ["runsc-sandbox", "runsc-gofer"])
@pytest.mark.parametrize("address", BOTH)
def test_a_part_of_runsc_that_is_killed_mid_action_is_a_loss_and_never_a_result(address: str, victim: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            async with Sandbox(substrate, Spec(), timeout_s=60) as box:
                going = asyncio.ensure_future(box.run("touch /tmp/begun; sleep 60"))
                while not (await box.run("test -e /tmp/begun")).ok:
                    await asyncio.sleep(0.05)
                for pid in processes(victim):
                    os.kill(pid, signal.SIGKILL)
                await lost(lambda: going)
                await lost(lambda: box.run(["true"]))
            assert left() == []

    run(scenario)


CLIENT = """
import asyncio, sys
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec

async def main():
    limits = Limits(cpus=float(sys.argv[2])) if sys.argv[2] else Limits()
    async with Sandbox(sys.argv[1], Spec(limits=limits), ttl_s=600) as box:
        await box.run("sleep 600 & :")
        print(box.id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("address", BOTH)
def test_a_client_that_is_killed_leaves_nothing(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            cpus = "0.5" if "cpus" in (await substrate.probe()).limits else ""
            client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address, cpus, stdout=subprocess.PIPE)
            assert client.stdout is not None
            sandbox = (await client.stdout.readline()).decode().strip()
            assert processes("runsc-sandbox")
            client.kill()
            await client.wait()
            while left():  # its keeper sees that it is gone, and ends what is below
                await asyncio.sleep(0.05)
            await substrate.collect()
            assert list(Path("/sys/fs/cgroup").glob(f"**/{sandbox}")) == []

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_lease_that_runs_out_ends_it(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            handle = await substrate.create(Spec(), deadline_s=50, lease_s=60, labels={}, request_id="a lease")
            await handle.ready()
            await handle.renew(0.2)
            while processes("runsc-sandbox"):
                await asyncio.sleep(0.05)
            await lost(lambda: handle.run(Exec(("true",))))
            await handle.close()
            assert left() == []

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_create_that_takes_too_long_leaves_nothing(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            await substrate.probe()
            with pytest.raises(CreateError):
                await substrate.create(Spec(), deadline_s=0.03, lease_s=60, labels={}, request_id="late")
            assert left() == []

    run(scenario)


# ---- states


@pytest.mark.parametrize("address", BOTH)
def test_a_snapshot_has_what_was_removed_and_replaced_too(address: str) -> None:
    """A directory that was removed and made again shows nothing of the one before."""

    async def scenario() -> None:
        async with connect(address) as substrate:
            if (await substrate.probe()).snapshot is None:
                pytest.skip("this runsc has no tar of what was written")
            async with Sandbox(substrate, Spec(), timeout_s=60) as box:
                script = (
                    "rm /etc/hosts; rm -rf /var/tmp /etc/ssl; mkdir /etc/ssl; echo 1 > /etc/ssl/own; ln -s own /etc/ssl/link"
                )
                assert (await box.run(f"{script}; chown 1000:1000 /etc/ssl/own; chmod 640 /etc/ssl/own")).ok
                look = "cd /etc; ls hosts; ls -d /var/tmp; ls -lnR --time-style=+ ssl"
                before = await box.run(look, merge=True)
                snapshot = await box.snapshot()
                await box.run("rm -rf /etc/ssl; echo 2 > /etc/hosts")
                await box.reset(snapshot)
                assert (await box.run(look, merge=True)).stdout == before.stdout
                await substrate.discard(snapshot)

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_diff_sees_through_layers_and_links(address: str) -> None:
    """Replaced directories, hard links, files written again with what they held; a made workdir is no change."""

    async def scenario() -> None:
        async with connect(address) as substrate:
            if not (await substrate.probe()).diff:
                pytest.skip("this runsc has no tar of what was written")
            async with Sandbox(substrate, Spec(workdir="/made/here"), timeout_s=60) as box:
                assert await box.diff() == ()
                await box.run("mkdir -p old/deep; echo 1 > old/deep/file; echo 2 > kept; ln kept again; ln -s kept link")
                snapshot = await box.snapshot()
                same = "cat kept > copy; cat copy > kept; rm copy; cp -p /etc/hosts h; cat h > /etc/hosts; rm h"
                assert (
                    await box.run(f"{same}; rm -rf old; mkdir old; echo 3 > old/file; ln -sfn again link; chmod 600 kept")
                ).ok
                since = {(one.path.removeprefix("/made/here/"), one.kind) for one in await box.diff(snapshot)}
                wanted = {("old/deep", "deleted"), ("old/file", "added"), ("link", "modified")}
                assert since == wanted | {("kept", "modified"), ("again", "modified")}
                start = {one.path for one in await box.diff()}
                assert start == {f"/made/here/{name}" for name in ("old", "old/file", "kept", "again", "link")}
                await substrate.discard(snapshot)

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_diff_begins_after_the_specs_steps(address: str) -> None:
    async def scenario() -> None:
        steps = (Step("write", (Write("stepped", b"1"),)),)
        async with Sandbox(address, Spec(steps=steps), timeout_s=60) as box:
            assert await box.diff() == ()
            await box.write("own", b"2")
            assert [(posixpath.basename(one.path), one.kind) for one in await box.diff()] == [("own", "added")]

    run(scenario)


# ---- the way out


@contextmanager
def serving() -> Generator[int]:
    """Something on this machine that answers over HTTP, at an address that no_proxy does not name; its port."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody wants to know."""

    with ThreadingHTTPServer((HERE, 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


HERE = "127.0.0.2"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"
AROUND = """
import socket, sys
for host, port in (("127.0.0.2", int(sys.argv[1])), ("10.254.0.1", int(sys.argv[1])), ("10.254.0.1", 22), ("192.0.2.1", 80)):
    try: socket.create_connection((host, port), 2); print("reached", host, port)
    except OSError: pass
"""


@pytest.mark.parametrize("address", BOTH)
def test_what_is_listed_is_reached_by_the_proxy_and_nothing_in_any_other_way(address: str) -> None:
    async def scenario() -> None:
        with serving() as port:
            async with connect(address) as substrate:
                if "allow" not in (await substrate.probe()).network:
                    pytest.skip("this user can lay no wire")
                spec = Spec(network=Allow((HERE,), ports=(port,)))
                async with Sandbox(substrate, spec, timeout_s=60) as box:
                    assert (await box.run(["python3", "-c", FETCH, f"http://{HERE}:{port}/"])).text == "hello\n"
                    refused = await box.run(["python3", "-c", FETCH, f"http://{HERE}:{port + 1}/"])
                    assert "403" in refused.text
                    assert (await box.run(["python3", "-c", AROUND, str(port)])).text == ""
                    snapshot = await box.snapshot()
                    await box.reset(snapshot)
                    assert (await box.run(["python3", "-c", FETCH, f"http://{HERE}:{port}/"])).text == "hello\n"
                    await substrate.discard(snapshot)
            assert left() == []

    run(scenario)


@pytest.mark.parametrize("address", BOTH)
def test_a_killed_proxy_is_a_lost_sandbox(address: str) -> None:
    async def scenario() -> None:
        async with connect(address) as substrate:
            if "open" not in (await substrate.probe()).network:
                pytest.skip("this user can lay no wire")
            async with Sandbox(substrate, Spec(network="open"), timeout_s=60) as box:
                for entry in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                    if b"excise.network.proxy" in Path(f"/proc/{entry}/cmdline").read_bytes():
                        os.kill(int(entry), signal.SIGKILL)
                await lost(lambda: box.run("sleep 1000"))
                assert "proxy" in await lost(lambda: box.run(["true"]))

    run(scenario)
