"""Sessions: a shell that stays, and what happens when it cannot."""

import asyncio
from contextlib import suppress

from excise.action import End
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded, told
from excise.contract.watch import beating, silent, time_out, workdir
from excise.sandbox import Sandbox

SESSIONS = ("sessions",)


async def _in_sub(bench: Bench) -> tuple[Sandbox, str]:
    box = await bench.sandbox()
    await box.make_dir("sub")
    return box, f"{(await workdir(box)).rstrip('/')}/sub"


async def _usable(box: Sandbox, after: str) -> None:
    seen = await box.run(scripts.ECHO_OK, session="main")
    equal((seen.end, seen.exit_code, seen.stdout), (End.EXITED, 0, b"ok\n"), f"the session's next answer after {after}")


@case(
    promise="A session keeps its directory, variables, exported variables and functions.",
    why="An agent that activates a virtual environment expects it to be active in the next command.",
    needs=SESSIONS,
)
async def session_keeps_state(bench: Bench) -> None:
    box, sub = await _in_sub(bench)
    succeeded(await box.run(scripts.SET_STATE, session="main"), "setting the state")
    seen = await box.run(scripts.SHOW_STATE, session="main")
    equal(seen.stdout.decode().splitlines(), [sub, "one", "two", "three"], "the session's state")
    expect(not seen.session_replaced, "a session that was never disturbed is said to have been replaced")


@case(
    promise="A timeout in a session kills the command and keeps the shell.",
    why="Losing the directory and the virtual environment to one slow test confuses the policy for the rest of the rollout.",
    needs=SESSIONS,
)
async def session_timeout_keeps_shell(bench: Bench) -> None:
    box, sub = await _in_sub(bench)
    succeeded(await box.run(scripts.SET_KEPT, session="main"), "setting a variable")
    succeeded(await box.run(scripts.CD_SUB, session="main"), "`cd`")
    seen = await box.run(scripts.SLEEP_LONG, session="main", timeout_s=1.0)
    expect(seen.end is End.TIMED_OUT, f"`sleep 1000` with a timeout is told as {told(seen)}")
    expect(not seen.session_replaced, "the shell was replaced, though it was only waiting for its command")
    await time_out(box, scripts.BEAT_AS_CHILD_OF_SESSION, session="main", path="sub/beat")
    await silent(box, "the session's command that timed out", "sub/beat")
    seen = await box.run(scripts.SHOW_KEPT, session="main")
    equal(seen.stdout.decode().splitlines(), [sub, "[yes]"], "the session's state after the timeouts")


@case(
    promise="A timeout in a session spares what its earlier commands left running.",
    why="The server and the request that hung are usually started in the same session.",
    needs=(*SESSIONS, "background"),
)
async def session_timeout_spares_earlier(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.LEAVE_BEAT, session="main"), "leaving a process running")
    await beating(box, "the process that was left running")
    seen = await box.run(scripts.SLEEP_LONG, session="main", timeout_s=1.0)
    expect(seen.end is End.TIMED_OUT, f"`sleep 1000` with a timeout is told as {told(seen)}")
    await beating(box, "a process of an earlier command of the session")


@case(
    promise="A stuck shell is replaced, and the Observation says so.",
    why="A session that hangs for good ends the rollout; one replaced in silence lies about its directory.",
    needs=SESSIONS,
)
async def session_stuck_shell_replaced(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await time_out(box, scripts.STUCK, session="main")
    expect(seen.session_replaced, "the Observation does not say that the shell was replaced")
    await silent(box, "the stuck shell")
    await _usable(box, "a stuck shell")
    expect(not (await box.run(scripts.TRUE, session="main")).session_replaced, "a replacement is told more than once")


@case(
    promise="`exit 3` in a session is exit code 3, says that the shell was replaced, and the next command works.",
    why="Policies type `exit`; a session that is gone afterwards turns that into a lost rollout.",
    needs=SESSIONS,
)
async def session_exit_is_told(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.EXIT_3, session="main")
    equal((seen.end, seen.exit_code, seen.session_replaced), (End.EXITED, 3, True), "end, exit code, session_replaced")
    await _usable(box, "`exit 3`")


@case(
    promise="Actions of one session run one after another, in the order they were given.",
    why="Two writers on one shell's stdin interleave, and each reads half of the other's answer.",
    needs=SESSIONS,
)
async def session_in_order(bench: Bench) -> None:
    box = await bench.sandbox()
    async with asyncio.TaskGroup() as group:
        for script in scripts.ORDERED:
            group.create_task(box.run(script, session="main"))
    lines = (await box.read("log")).decode().split()
    equal(lines, ["a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"], "the order in which things happened")


@case(
    promise="Different sessions run at once and know nothing of each other.",
    why="A tail in one session must not stop the work in the other.",
    needs=SESSIONS,
)
async def sessions_side_by_side(bench: Bench) -> None:
    box = await bench.sandbox()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(box.run(scripts.SET_SIDE_A, session="a"))
        second = group.create_task(box.run(scripts.SET_SIDE_B, session="b"))
    equal((first.result().stdout, second.result().stdout), (b"a\n", b"[]\n"), "what each session sees of its variable")


@case(
    promise="A session tells each command's true status; broken syntax, `return` and `break` leave it as it was.",
    why="Text pasted into a shell can swallow the marker that ends it: the session hangs, or is off by one from then on.",
    needs=SESSIONS,
)
async def session_status_exact(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.SET_KEPT, session="main"), "setting a variable")
    for script, code in ((scripts.TRUE, 0), (scripts.FALSE, 1), (scripts.EXIT_7_IN_SUBSHELL, 7)):
        seen = await box.run(script, session="main")
        equal((seen.end, seen.exit_code), (End.EXITED, code), f"how {script!r} ended")
    for script in (scripts.UNTERMINATED_QUOTE, scripts.SYNTAX_ERROR, scripts.RETURN_5, scripts.BREAK):
        seen = await box.run(script, session="main")
        expect(seen.end is End.EXITED, f"{script!r} is told as {told(seen)}")
        expect(script == scripts.BREAK or seen.exit_code, f"{script!r} is told to have succeeded")
        await _usable(box, repr(script))
        seen = await box.run(scripts.SHOW_KEPT, session="main")
        equal(seen.stdout.decode().splitlines()[-1:], ["[yes]"], f"the session's variable after {script!r}")


@case(
    promise="No process started by a session can forge its status.",
    why="A child that writes `0` to an inherited descriptor passes the tests without passing them: reward hacking.",
    needs=SESSIONS,
)
async def session_status_unforgeable(bench: Bench) -> None:
    box = await bench.sandbox()
    for script, code in ((scripts.FORGE_IN_SUBSHELL, 9), (scripts.FORGE_IN_CHILD, 8)):
        seen = await box.run(script, session="main")
        equal((seen.end, seen.exit_code), (End.EXITED, code), "how a command that forges success ended")
        # What was forged may lie in wait for the commands after it.
        equal((await box.run(scripts.FALSE, session="main")).exit_code, 1, "the status of `false`, later")
        await _usable(box, "a forged status")


@case(
    promise="A cancelled command leaves its session usable.",
    why="An answer that nobody fetched is taken for the next command's: off by one from then on.",
    needs=SESSIONS,
)
async def session_survives_cancel(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.TRUE, session="main"), "the first command")
    task = bench.begin(box.run(scripts.BEAT_AS_CHILD_OF_SESSION, session="main"))
    succeeded(await box.run(scripts.WAIT_FOR_BEAT), "waiting for the command to begin")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await silent(box, "the cancelled command")
    await _usable(box, "a cancelled command")
