"""The client's own descriptors: none is lost, whatever becomes of an action, and too few of them is a clean error."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from excise import Sandbox, SandboxLost, Spec
from excise.action import Exec
from excise.errors import ExciseError, SubstrateError
from excise.registry import make
from excise.storage.home import state_dir
from excise.substrate import Substrate

OPEN = Path("/proc/self/fd")


def held() -> list[str]:
    found: list[str] = []
    for link in OPEN.iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return found


async def never_read(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        await box.start("yes")


async def read_half_way(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        async for _ in (await box.start("yes")).events():
            break


async def timed_out(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        await box.run("sleep 1000", timeout_s=0.02)


async def lost(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        await box.run("kill -9 $PPID; sleep 1000")


async def left_running(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        await (await box.start("sleep 1000 & echo")).wait()


async def never_ready(substrate: Substrate) -> None:
    async with Sandbox(substrate, Spec(ready=(Exec(("false",)),)), wait_s=0.1):
        pass


async def session_given_up_while_it_opens(substrate: Substrate) -> None:
    async with Sandbox(substrate) as box:
        action = asyncio.ensure_future(box.run("true", session="main"))
        for _ in range(4):
            await asyncio.sleep(0)
        action.cancel()


@pytest.mark.parametrize(
    "life",
    [never_read, read_half_way, timed_out, lost, left_running, never_ready, session_given_up_while_it_opens],
    ids=lambda life: life.__name__,
)
def test_no_descriptor_is_left(life: Callable[[Substrate], Awaitable[None]]) -> None:
    async def check() -> None:
        substrate = make("local")
        async with Sandbox(substrate) as box:
            await box.run("true")
        before = len(held())
        for _ in range(3):
            with contextlib.suppress(ExciseError):
                await life(substrate)
        assert len(held()) == before
        await substrate.close()

    asyncio.run(check())


@pytest.mark.parametrize("action", ["true", "session", "upload", "start"])
def test_an_action_cancelled_at_any_step_leaves_nothing(action: str) -> None:
    async def act(box: Sandbox) -> None:
        match action:
            case "session":
                await box.run("sleep 0.01", session="main")
            case "upload":
                await box.upload("here", _empty_tar())
            case "start":
                process = await box.start("cat")
                await process.write(b"x" * 200_000)
            case _:
                await box.run("true", stdin=b"x" * 200_000)

    async def check() -> None:
        async with asyncio.timeout(60), Sandbox("local") as box:
            await box.run("true", session="main")
            for steps in range(25):
                task = asyncio.ensure_future(act(box))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            assert (await box.run("echo hi", session="main")).stdout == b"hi\n"
        assert not [name for name in held() if "memfd" in name]

    before = len(held())
    asyncio.run(check())
    assert len(held()) == before


async def _empty_tar() -> AsyncIterator[bytes]:
    yield bytes(10240)


@contextlib.contextmanager
def room_for(more: int) -> Generator[None]:
    """Only so many descriptors above those that are open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in OPEN.iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_few_descriptors_for_an_action_is_a_lost_sandbox_and_none_leaks() -> None:
    async def check() -> None:
        async with Sandbox("local") as box:
            await box.run("true", session="open")
            before = len(held())
            for more in range(8):
                options: tuple[dict[str, Any], ...] = ({}, {"session": f"s{more}"}, {"stdin": b"x"})
                for doing in options:
                    with room_for(more), contextlib.suppress(SandboxLost):
                        await box.run("true", **doing)
            assert (await box.run("true")).ok
            assert len(held()) <= before + 3 * 8  # the sessions that could be opened

    before = len(held())
    asyncio.run(check())
    assert len(held()) == before


def test_too_few_descriptors_for_a_sandbox_is_a_substrate_error_and_nothing_is_left() -> None:
    async def check() -> None:
        for more in range(14):
            with room_for(more), contextlib.suppress(SubstrateError, SandboxLost):
                async with Sandbox("local") as box:
                    await box.run("true")

    async def warm() -> None:
        async with Sandbox("local") as box:
            await box.run("true")

    asyncio.run(warm())
    before = len(held())
    asyncio.run(check())
    assert len(held()) == before
    assert list(state_dir().iterdir()) == []


def test_a_writer_wakes_when_its_stdin_is_closed_under_it() -> None:
    async def check() -> None:
        async with asyncio.timeout(20), Sandbox("local") as box:
            process = await box.start("exec 3<&0; sleep 1000 <&3 >/dev/null 2>&1 & sleep 0.1")
            writers = [asyncio.ensure_future(process.write(b"x" * 1_000_000)) for _ in range(2)]
            assert (await process.wait()).still_running
            outcomes = await asyncio.gather(*writers, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [BrokenPipeError] * 2
            # A descriptor closed behind the loop's back would be mixed up with these.
            assert (await asyncio.gather(*(box.run("cat", stdin=b"hi") for _ in range(8))))[7].stdout == b"hi"

    asyncio.run(check())


def test_many_actions_at_once_are_all_answered_with_few_descriptors() -> None:
    async def check() -> None:
        async with asyncio.timeout(60), Sandbox("local") as box:
            await box.run("true")
            with room_for(1000):
                seen = await asyncio.gather(*(box.run(["sleep", "0.2"]) for _ in range(200)))
            assert all(one.ok for one in seen)
            seen = await asyncio.gather(*(box.run(["true"]) for _ in range(400)))
            assert all(one.ok for one in seen)

    asyncio.run(check())
