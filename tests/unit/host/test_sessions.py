"""What a session's shell goes through, and what of it others notice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from excise import Sandbox, SandboxLost, SpecError
from excise.action import End


def in_sandbox(check: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(40), Sandbox("local") as box:
            await check(box)

    asyncio.run(run())


def test_a_shell_that_is_interrupted_ends_its_command() -> None:
    async def check(box: Sandbox) -> None:
        seen = await box.run("kill -INT $$; echo no", session="main", timeout_s=10)
        assert (seen.end, seen.exit_code, seen.stdout) == (End.EXITED, 130, b"")
        assert (await box.run("echo hi", session="main")).stdout == b"hi\n"

    in_sandbox(check)


def test_functions_may_have_any_name() -> None:
    async def check(box: Sandbox) -> None:
        await box.run("printf() { echo mine; }; eval() { echo mine; }", session="main", timeout_s=10)
        assert (await box.run("echo hi; false", session="main", timeout_s=10)).exit_code == 1

    in_sandbox(check)


def test_only_what_the_action_itself_left_is_told_as_running() -> None:
    async def check(box: Sandbox) -> None:
        assert (await box.run("(sleep 0.1 &); sleep 1000 &", session="main")).still_running
        await box.run("sleep 0.3", session="main")
        assert not (await box.run(":", session="main")).still_running
        ended = await box.run("sleep 1000 & sleep 1000", session="main", timeout_s=0.2)
        assert ended.end is End.TIMED_OUT
        assert not ended.still_running

    in_sandbox(check)


def test_a_shell_killed_by_a_signal_says_which() -> None:
    async def check(box: Sandbox) -> None:
        seen = await box.run("kill -9 $$", session="main")
        assert (seen.end, seen.signal, seen.session_replaced) == (End.SIGNALED, 9, True)

    in_sandbox(check)


def test_an_action_that_nobody_reads_gives_its_turn_up_when_it_ends() -> None:
    async def check(box: Sandbox) -> None:
        short = await box.start("echo unread", session="main")
        stuck = asyncio.ensure_future(box.start("yes", session="main", timeout_s=0.2))
        assert (await box.run("echo next", session="main", timeout_s=20)).stdout == b"next\n"
        assert (await short.wait()).stdout == b"unread\n"
        assert (await (await stuck).wait()).end is End.TIMED_OUT

    in_sandbox(check)


def test_killing_an_ended_action_takes_nothing_from_the_next() -> None:
    async def check(box: Sandbox) -> None:
        first = await box.start("echo one", session="main")
        await first.wait()
        second = await box.start("echo two; sleep 0.3; echo three", session="main")
        await asyncio.sleep(0.1)
        await first.kill()
        assert (await second.wait()).stdout == b"two\nthree\n"

    in_sandbox(check)


def test_turns_go_on_in_order_when_one_who_waits_gives_up() -> None:
    async def check(box: Sandbox) -> None:
        actions = [asyncio.ensure_future(box.run(f"sleep 0.05; echo {n} >> order", session="main")) for n in range(6)]
        await asyncio.sleep(0.02)
        actions[3].cancel()
        await asyncio.gather(*actions, return_exceptions=True)
        assert (await box.read("order")).split() == [b"0", b"1", b"2", b"4", b"5"]

    in_sandbox(check)


def test_a_session_that_is_opening_when_the_sandbox_closes_is_lost() -> None:
    async def check(box: Sandbox) -> None:
        action = asyncio.ensure_future(box.run("true", session="main"))
        await asyncio.sleep(0)
        await box.close()
        with pytest.raises(SandboxLost):
            await action

    in_sandbox(check)


def test_a_script_that_no_encoding_carries_is_refused() -> None:
    async def check(box: Sandbox) -> None:
        with pytest.raises(SpecError):
            await box.run("echo \ud800", session="main")
        assert (await box.run("echo hi", session="main")).ok

    in_sandbox(check)
