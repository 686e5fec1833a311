"""Programs that turn against who watches over them, or that hold a file action up, keep no one waiting."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from excise import Sandbox, SandboxLost
from excise.action import End, Observation, Pty
from excise.host.descendants import Tree

PATIENCE_S = 60


def run(script: str, session: str | None = None, timeout_s: float = 1.0) -> Observation:
    async def check() -> Observation:
        async with asyncio.timeout(PATIENCE_S), Sandbox("local") as box:
            return await box.run(script, session=session, timeout_s=timeout_s)

    return asyncio.run(check())


@pytest.mark.parametrize("session", [None, "main"])
def test_who_stops_its_runner_times_out_as_any_other(session: str | None) -> None:
    assert run("kill -STOP $PPID; sleep 1000", session).end is End.TIMED_OUT


@pytest.mark.parametrize("above", ["1", "1 2"], ids=["keeper", "supervisor"])
def test_who_stops_those_further_up_stops_nobody(above: str) -> None:
    seen = run(f"p=$PPID; for _ in {above}; do read -r _ _ _ p _ < /proc/$p/stat; done; kill -STOP $p; echo hi")
    assert seen.stdout == b"hi\n"


def test_who_kills_its_runner_loses_the_sandbox() -> None:
    with pytest.raises(SandboxLost):
        run("kill -9 $PPID; sleep 1000")


def test_more_processes_than_we_may_open_descriptors_are_all_killed() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, limits[1]))
    many = highest + 120
    try:
        seen = run(f"i=0; while [ $i -lt {many} ]; do setsid sleep 1000 & i=$((i+1)); done; echo up; wait", timeout_s=5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert seen.end is End.TIMED_OUT
    assert seen.stdout == b"up\n"
    assert Tree().below((os.getpid(),)) == []


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_a_read_that_never_ends_can_be_cancelled(path: str) -> None:
    async def check() -> None:
        async with asyncio.timeout(PATIENCE_S), Sandbox("local") as box:
            await box.run("mkfifo fifo")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(box.read(path), 0.2)
            assert (await box.run("echo hi")).stdout == b"hi\n"

    asyncio.run(check())


def test_a_directory_of_any_length_is_listed() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            await box.run("mkdir many; cd many; i=0; while [ $i -lt 3000 ]; do : > file_$i; i=$((i+1)); done")
            assert len(await box.list("many")) == 3000

    asyncio.run(check())


def test_a_terminal_that_nobody_reads_holds_no_one_up() -> None:
    async def check() -> None:
        async with asyncio.timeout(PATIENCE_S), Sandbox("local") as box:
            process = await box.start("stty raw -echo; echo up; sleep 1000", pty=Pty(), stdin=b"x" * 1_000_000, timeout_s=1)
            assert (await process.wait()).end is End.TIMED_OUT
            assert (await box.run(["/nowhere"], pty=Pty())).exit_code == 127

    asyncio.run(check())


def test_a_directory_that_cannot_be_named_is_the_commands_failure() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            assert (await box.run("true", cwd="a\0b")).exit_code == 127

    asyncio.run(check())


IGNORING = """
import asyncio, signal
from excise import Sandbox
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGIO):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
async def main():
    async with Sandbox("local") as box:
        print((await box.run("grep -E 'Sig(Ign|Blk)' /proc/self/status")).text)
        await box.run("x=kept; sleep 1000", session="main", timeout_s=0.3)
        print((await box.run("echo $x", session="main")).text)
asyncio.run(main())
"""


def test_what_the_client_ignores_its_programs_do_not() -> None:
    ended = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, check=True, timeout=60)
    words = ended.stdout.split()
    of = {name: int(words[words.index(name) + 1], 16) for name in ("SigIgn:", "SigBlk:")}
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGIO):
        assert not of["SigIgn:"] >> (number - 1) & 1
    assert not of["SigBlk:"] >> (signal.SIGTERM - 1) & 1
    assert words[-1] == "kept"


LOCKING = """
import os, pathlib, sys
from excise.host.directories import remove
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
place = pathlib.Path(sys.argv[1]) / "box"
inner = place / "locked" / "inner"
inner.mkdir(parents=True)
(inner / "file").touch()
inner.chmod(0)
inner.parent.chmod(0o500)
remove(str(place))
"""


def test_a_directory_whose_rights_were_taken_away_is_removed() -> None:
    """As an ordinary user, whom rights bind: root's programs cannot lock root out."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        subprocess.run([sys.executable, "-c", LOCKING, place], check=True, timeout=60)
        assert list(Path(place).iterdir()) == []
