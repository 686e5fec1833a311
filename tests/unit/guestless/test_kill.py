"""The end of one action's processes, found by their mark among all of this machine's.

The rule for unmarked orphans is left out here, because on a whole machine it would find other people's: the contract suite
judges it inside sandboxes.
"""

import asyncio
import os
import secrets
import signal
from pathlib import Path

import pytest

from excise.action import Exec, Observation
from excise.errors import SandboxLost
from excise.guestless.kill import kill, send
from excise.guestless.wrapper import MARKER

from .conftest import Run

# Writes the pids of a child, of a detached one, and of a child of that one with an empty environment; then waits.
TREE = """
sleep 1000 & echo $! >>pids
setsid sh -c 'env -i sleep 1000 & echo $! >>pids; echo $$ >>pids; wait' &
while [ $(wc -l <pids) -lt 3 ]; do sleep 0.02; done
echo $$ >>pids
touch up
wait
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


async def tree(place: Path, nonce: str) -> tuple[asyncio.subprocess.Process, list[int]]:
    place.mkdir()
    (place / "pids").touch()
    process = await asyncio.create_subprocess_exec("sh", "-c", TREE, cwd=place, env={**os.environ, MARKER: nonce})
    while not (place / "up").exists():
        await asyncio.sleep(0.01)
    return process, [int(word) for word in (place / "pids").read_text().split()]


def test_all_of_one_action_and_none_of_another(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        mine, other = secrets.token_hex(16), secrets.token_hex(16)
        first, doomed = await tree(tmp_path / "mine", mine)
        second, spared = await tree(tmp_path / "other", other)
        try:
            assert all(alive(pid) for pid in (*doomed, *spared))
            await kill(run, mine)
            assert not any(alive(pid) for pid in doomed)
            assert all(alive(pid) for pid in spared)
            await kill(run, mine)  # of what is dead already: nothing to do
        finally:
            await kill(run, other)
            await asyncio.gather(first.wait(), second.wait())
        assert not any(alive(pid) for pid in spared)

    asyncio.run(scenario())


def test_what_started_before_the_action_is_not_looked_at(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        nonce = secrets.token_hex(16)
        process, pids = await tree(tmp_path / "mine", nonce)
        try:
            await kill(run, nonce, since_ticks=1 << 60)
            assert all(alive(pid) for pid in pids)
        finally:
            await kill(run, nonce)
            await process.wait()

    asyncio.run(scenario())


def test_marks_root_cannot_read_are_looked_for_as_the_user(run: Run, tmp_path: Path) -> None:
    """Root may lack the right to look and then see no mark at the wrapper's pid; what the user finds is ended all the same."""

    async def scenario() -> None:
        nonce = secrets.token_hex(16)
        process, pids = await tree(tmp_path / "mine", nonce)
        modes: list[str] = []

        async def noted(action: Exec) -> Observation:
            modes.append(action.argv[8])
            return await run(action)

        # A pid nobody has stands for the wrapper whose mark cannot be read.
        await kill(noted, nonce, wrapper_pid=1 << 30, since_ticks=1, run_as_user=noted)
        await process.wait()
        assert modes == ["look", "stop", "kill"]
        assert not any(alive(pid) for pid in pids)

    asyncio.run(scenario())


def test_what_cannot_be_ended_is_a_loss() -> None:
    async def fails(_: Exec) -> Observation:
        return Observation(exit_code=1, stdout=b"still alive: 7")

    with pytest.raises(SandboxLost, match="still alive: 7"):
        asyncio.run(kill(fails, "x"))


def test_a_signal_goes_to_the_child_of_the_wrapper(run: Run) -> None:
    async def scenario() -> bytes:
        wrapper = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            'sh -c "echo up; exec sleep 1000"; echo $?',
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert wrapper.stdout is not None
        assert await wrapper.stdout.readline() == b"up\n"
        await send(run, wrapper.pid, signal.SIGTERM)
        out, _ = await wrapper.communicate()
        return out

    assert asyncio.run(scenario()) == b"143\n"
