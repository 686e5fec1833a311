"""How long processes live: as long as their action, unless they were left running; never longer than asked."""

import asyncio
import os
from contextlib import suppress

from excise.action import KEEP_ALL, End
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded, told
from excise.contract.watch import beating, silent, time_out

MEBIBYTE = 1 << 20


@case(
    promise="An action ends when its main process ends, never when the pipes close: `sleep 1000 & echo hi` answers at once.",
    why="Every agent starts a server in the background once; reading until end of file then hangs to the timeout.",
)
async def answers_when_main_ends(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.LEAVE_SLEEPER)
    equal((seen.end, seen.exit_code, seen.stdout), (End.EXITED, 0, b"hi\n"), "the answer")


@case(
    promise="What an action left running is reported and lives on.",
    why="A dev server that dies with the command that started it makes every later request fail without a reason.",
    needs=("background",),
)
async def left_running_lives_on(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.ECHO_HI)
    expect(not seen.still_running, "an action that left nothing running is reported to have")
    seen = await box.run(scripts.LEAVE_BEAT)
    equal((seen.end, seen.stdout), (End.EXITED, b"left\n"), "the answer")
    expect(seen.still_running, "that a process was left running is not reported")
    await beating(box, "the process that was left running")


@case(
    promise="All that the main process wrote is read, though a child that lives on holds the pipe open.",
    why="Ending with the process is easy to get wrong by ending before the pipe was drained: the last lines vanish.",
)
async def reads_all_that_was_written(bench: Bench) -> None:
    box = await bench.sandbox()
    block = os.urandom(MEBIBYTE)
    await box.write("block", block)
    seen = await box.run(scripts.LEAVE_SLEEPER_HOLDING_PIPE, keep=KEEP_ALL)
    expect(seen.end is End.EXITED, f"the action is told as {told(seen)}")
    expect(seen.stdout == block, f"{len(seen.stdout)} of {len(block)} bytes were read, or others")


@case(
    promise="On timeout the action's children are dead before the call returns.",
    why="Killing only the shell leaves the compiler running, and it slows down every rollout after this one.",
)
async def timeout_kills_child(bench: Bench) -> None:
    box = await bench.sandbox()
    await time_out(box, scripts.BEAT_IN_CHILD)
    await silent(box, "a child of the action that timed out")


@case(
    promise="On timeout a child that forked twice into a session of its own is dead before the call returns, too.",
    why="Daemons leave the process group: killing the group misses exactly those that were meant to stay.",
)
async def timeout_kills_detached(bench: Bench) -> None:
    box = await bench.sandbox()
    await time_out(box, scripts.BEAT_DETACHED)
    await silent(box, "a detached descendant of the action that timed out")


@case(
    promise="On timeout a detached child that also emptied its environment is dead before the call returns, too.",
    why="Finding descendants by a variable they inherited misses those started with `env -i`, as `sudo` and cron do.",
)
async def timeout_kills_unmarked(bench: Bench) -> None:
    box = await bench.sandbox()
    await time_out(box, scripts.BEAT_UNMARKED)
    await silent(box, "a detached descendant with an empty environment")


@case(
    promise="On timeout the processes of earlier actions live on.",
    why="Killing everything in the sandbox takes the server down with the request that hung.",
    needs=("background",),
)
async def timeout_spares_earlier(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.LEAVE_BEAT), "leaving a process running")
    await beating(box, "the process that was left running")
    seen = await box.run(scripts.SLEEP_LONG, timeout_s=1.0)
    expect(seen.end is End.TIMED_OUT, f"`sleep 1000` with a timeout is told as {told(seen)}")
    await beating(box, "a process of an earlier action")


@case(
    promise="On timeout actions that run at the same time go on undisturbed.",
    why="Restarting the sandbox, or its shell, to get rid of one command fails all the others.",
)
async def timeout_spares_others(bench: Bench) -> None:
    box = await bench.sandbox()
    other = bench.begin(box.run(scripts.WAIT_FOR_GO))
    seen = await box.run(scripts.SLEEP_LONG, timeout_s=1.0)
    expect(seen.end is End.TIMED_OUT, f"`sleep 1000` with a timeout is told as {told(seen)}")
    succeeded(await box.run(scripts.MAKE_GO), "the action after the timeout")
    equal((await other).stdout, b"went\n", "the answer of the action that ran at the same time")


@case(
    promise="What was written before the timeout is in the Observation.",
    why="The hung test's name is in the output; an empty answer leaves a policy guessing.",
)
async def timeout_keeps_output(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await time_out(box, scripts.SPEAK_THEN_BEAT)
    equal((seen.stdout, seen.stderr), (b"before\n", b"aside\n"), "the answer's two streams")


@case(
    promise="On cancellation every process the action started is dead before the call returns.",
    why="A trainer that cancels a rollout believes the machine is free again; orphans say otherwise.",
)
async def cancel_kills(bench: Bench) -> None:
    box = await bench.sandbox()
    task = bench.begin(box.run(scripts.BEAT_DETACHED))
    succeeded(await box.run(scripts.WAIT_FOR_BEAT), "waiting for the action to begin")
    task.cancel()
    with suppress(asyncio.CancelledError):
        seen = await task
        raise AssertionError(f"a cancelled action answered: {told(seen)}")
    await silent(box, "a process of the cancelled action")


@case(
    promise="Cancelling an action at any await leaves the sandbox as usable as before.",
    why="A lock never released or an answer never fetched shows up as a hang in an action that did nothing wrong.",
)
async def cancel_leaves_it_usable(bench: Bench) -> None:
    box = await bench.sandbox()
    for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        task = bench.begin(box.run(scripts.ECHO_HI))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            equal((await task).stdout, b"hi\n", "the answer of an action that ended before its cancellation")
        seen = await box.run(scripts.ECHO_OK)
        equal(seen.stdout, b"ok\n", f"the answer after one that was cancelled after {steps} steps")
