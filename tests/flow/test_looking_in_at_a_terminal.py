"""`excise shell` at a terminal of its own, and sandboxes that are kept when a command fails."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise.looking.names import short
from excise.sandbox import Sandbox
from excise.sync import Sandbox as BlockingSandbox

EXCISE = str(Path(sys.executable).parent / "excise")
_LIMIT_S = 60.0
ADDRESSES = ["namespace", "local", "docker"]


class Terminal:
    """A terminal whose keys we press and whose screen we read."""

    def __init__(self, *words: str) -> None:
        self.ours, self.theirs = pty.openpty()
        os.set_blocking(self.ours, False)
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [EXCISE, *words],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "vt100", "PS1": "$ "},
            start_new_session=True,
        )
        self.screen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    async def shows(self, pattern: str) -> str:
        """Read the screen until it matches, and forget what came before."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_LIMIT_S):
            while (found := re.search(pattern, self.screen)) is None:
                came = loop.create_future()
                loop.add_reader(self.ours, lambda waiting=came: waiting.done() or waiting.set_result(None))
                try:
                    await came
                finally:
                    loop.remove_reader(self.ours)
                with contextlib.suppress(BlockingIOError):
                    self.screen += os.read(self.ours, 65536).decode("utf-8", "replace")
        self.screen = self.screen[found.end() :]
        return found[0]

    async def code(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), _LIMIT_S)

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before


@contextlib.contextmanager
def terminal(*words: str) -> Generator[Terminal]:
    made = Terminal(*words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()
        os.close(made.ours)
        os.close(made.theirs)


@pytest.fixture(params=ADDRESSES)
def address(request: pytest.FixtureRequest, runs_here: Callable[[str], None]) -> str:
    runs_here(request.param)
    return request.param


def test_a_shell_at_a_terminal(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            with terminal("shell", short(box.id)) as seen:
                seen.press("stty size; echo $TERM-$((40 + 2))\n")
                await seen.shows(r"30 100\r\n")
                await seen.shows("vt100-42")
                seen.resize(40, 120)
                seen.process.send_signal(signal.SIGWINCH)
                seen.press("until test \"$(stty size)\" = '40 120'; do :; done; echo resized-$((1 + 1))\n")
                await seen.shows("resized-2")
                seen.press("sh -c 'echo asleep-$((1 + 2)); exec sleep 1000'\n")
                await seen.shows("asleep-3")
                seen.press("\x03echo interrupted-$((2 + 2))\n")
                await seen.shows("interrupted-4")
                seen.press("exit 5\n")
                assert await seen.code() == 5
                assert seen.restored
            assert (await box.run("echo alive")).text == "alive\n"

    asyncio.run(main())


def test_a_terminal_is_restored_when_who_looks_is_ended(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            with terminal("shell", box.id) as seen:
                seen.press("echo up-$((1 + 1))\n")
                await seen.shows("up-2")
                assert not seen.restored
                seen.process.send_signal(signal.SIGTERM)
                assert await seen.code() == 143
                assert seen.restored

    asyncio.run(main())


def test_a_terminal_is_restored_when_the_sandbox_ends(address: str) -> None:
    async def main() -> None:
        box = Sandbox(address)
        await box.open()
        try:
            with terminal("shell", box.id) as seen:
                seen.press("echo up-$((1 + 1))\n")
                await seen.shows("up-2")
                await box.close()
                assert await seen.code() == 125
                assert seen.restored
        finally:
            await box.close()

    asyncio.run(main())


# ---- kept


def kept(address: str) -> tuple["subprocess.Popen[str]", str]:
    """A command that fails, and its sandbox's name once it says that it is kept."""
    process = subprocess.Popen(
        [EXCISE, "run", address, "--keep-on-failure", "--", "sh", "-c", "echo evidence >trace.txt; exit 3"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    named = re.search(r"is kept for \d+ s.*`excise shell (\S+)` looks in, `excise rm (\S+)` ends it", said)
    assert named is not None, said
    return process, named[1]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EXCISE, *words], capture_output=True, text=True, check=False, timeout=_LIMIT_S)


def test_a_failed_commands_sandbox_is_kept_until_it_is_removed(address: str) -> None:
    process, name = kept(address)
    with process:
        try:
            if address == "docker":  # whose sandboxes are there without an owner
                assert process.wait(_LIMIT_S) == 3
            else:
                assert f"{name} (kept)" in command("ps").stdout
            assert command("shell", name, "--", "cat", "trace.txt").stdout == "evidence\n"
        finally:
            removed = command("rm", name)
        assert removed.returncode == 0, removed.stderr
        assert process.wait(_LIMIT_S) == 3
    assert name not in command("ps").stdout


def test_ctrl_c_ends_what_is_kept(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    process, name = kept("namespace")
    with process:
        process.send_signal(signal.SIGINT)
        assert process.wait(_LIMIT_S) == 130
    assert name not in command("ps").stdout


def test_a_command_that_succeeds_keeps_nothing(address: str) -> None:
    done = command("run", address, "--keep-on-failure", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_block_that_raises_keeps_its_sandbox_for_its_lease(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(ValueError, match="mine"):
            async with Sandbox("namespace", ttl_s=1.0, keep_on_failure=True):
                raise ValueError("mine")
        assert loop.time() - began_s >= 0.9

    asyncio.run(main())


def test_the_blocking_face_keeps_too(runs_here: Callable[[str], None]) -> None:
    runs_here("local")

    def fail() -> None:
        with BlockingSandbox("local", ttl_s=1.0, keep_on_failure=True):
            raise ValueError("mine")

    began_s = time.monotonic()
    with pytest.raises(ValueError, match="mine"):
        fail()
    assert time.monotonic() - began_s >= 0.9
