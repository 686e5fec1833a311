"""Commands: what goes in (arguments, environment, directory, stdin) and what comes back."""

import asyncio
import os

from excise.action import Batch, End, Exec, Read, Shell, Write
from excise.clock import now_ns
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded, told
from excise.contract.watch import exists, sh, workdir
from excise.errors import SpecError

MEBIBYTE = 1 << 20
AWKWARD = ("", " ", "two words", "it's", '"quoted"', "$HOME", "a\nb", "*", "\\", "-n", "grüße ☃", "a=b", "tab\there")


@case(
    promise="An action's exit code is the one its program ended with.",
    why="A wrapper that turns every failure into 1, or a failing command into an exception, scores the wrong thing.",
)
async def exit_code(bench: Bench) -> None:
    box = await bench.sandbox()
    for code in (0, 1, 3, 126, 127, 128, 137, 255):
        seen = await box.run(sh(scripts.EXIT_WITH, str(code)))
        equal((seen.end, seen.exit_code), (End.EXITED, code), f"how `exit {code}` ended")
    seen = await box.run(scripts.EXIT_3)
    equal((seen.exit_code, seen.ok), (3, False), "exit code and ok of `exit 3`")


@case(
    promise="A death by signal is told as one, with its number, and an exit code above 128 is not taken for one.",
    why="A segmentation fault and `exit 139` are different bugs; shells and CLIs fold them into one number.",
    needs=("signals",),
)
async def signal_is_told(bench: Bench) -> None:
    box = await bench.sandbox()
    for number in (9, 15):
        seen = await box.run(sh(scripts.KILL_SELF, str(number)))
        equal((seen.end, seen.signal, seen.exit_code), (End.SIGNALED, number, None), f"how a death by signal {number} is told")
    seen = await box.run(sh(scripts.EXIT_WITH, "137"))
    equal((seen.end, seen.signal), (End.EXITED, None), "how `exit 137` is told")


@case(
    promise="A program that is not there is exit code 127, as in a shell.",
    why="A policy mistypes commands all day: that is its doing and an Observation, never an error of the machinery.",
)
async def program_not_found(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(["excise-no-such-program", "x"])
    equal((seen.end, seen.exit_code), (End.EXITED, 127), "how a missing program is told")
    succeeded(await box.run(scripts.TRUE), "the action after it")


@case(
    promise="Exec hands its arguments over exactly; no shell sees them.",
    why="Joining argv with spaces breaks at the first quote, and is an injection waiting to happen.",
)
async def argv_exact(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(sh(scripts.PRINT_ARGUMENTS, *AWKWARD))
    equal(seen.stdout.decode(), "".join(f"<{a}>\n" for a in AWKWARD), "what the program got as arguments")


@case(
    promise="An action sees the spec's variables and its own, byte for byte, its own winning.",
    why="Values with newlines, quotes or `=` get lost on the way through env files and command lines.",
)
async def env(bench: Bench) -> None:
    box = await bench.sandbox(env={"VALUE": "from the spec"})
    seen = await box.run(scripts.PRINT_VALUE)
    equal(seen.stdout, b"from the spec", "the spec's variable")
    for value in AWKWARD:
        seen = await box.run(scripts.PRINT_VALUE, env={"VALUE": value})
        equal(seen.stdout.decode(), value, "the action's variable")
        seen = await box.run(["sh", "-c", scripts.PRINT_VALUE], env={"VALUE": value})
        equal(seen.stdout.decode(), value, "the action's variable in an Exec")
    seen = await box.run(scripts.PRINT_VALUE)
    equal(seen.stdout, b"from the spec", "the spec's variable, after actions that had their own")


@case(
    promise="The environment of the process that asks never reaches a sandbox.",
    why="API keys live in the trainer's environment; a policy that runs `env` reads them.",
)
async def host_env_stays_out(bench: Bench) -> None:
    os.environ["EXCISE_CONTRACT_PLANTED"] = bench.nonce
    try:
        box = await bench.sandbox()
        for seen in (await box.run(scripts.PRINT_ENVIRONMENT), await box.run(["env"])):
            succeeded(seen, "`env`")
            expect(bench.nonce.encode() not in seen.stdout, "a variable of the asking process is visible inside")
    finally:
        del os.environ["EXCISE_CONTRACT_PLANTED"]


@case(
    promise="An action starts in the working directory, and file actions take relative names from there.",
    why="Where a path is relative to one directory in `run` and to another in `write`, files vanish.",
)
async def workdir_is_cwd(bench: Bench) -> None:
    box = await bench.sandbox()
    here = await workdir(box)
    seen = await box.run(["pwd"])
    equal(seen.stdout.decode(), here + "\n", "the directory an Exec starts in")
    await box.write("file", bench.nonce)
    seen = await box.run(scripts.CAT_FILE)
    equal(seen.stdout.decode(), bench.nonce, "what a command reads of a file written by a relative name")
    equal((await box.read(f"{here}/file")).decode(), bench.nonce, "the same file by its absolute name")


@case(
    promise="The spec's `workdir` is made, and is where actions start; a substrate that cannot refuses it.",
    why="A field that is silently ignored shows up much later, as a test suite that found no tests.",
)
async def workdir_is_honoured(bench: Bench) -> None:
    asked = f"/tmp/excise-{bench.nonce}/work"
    try:
        box = await bench.sandbox(workdir=asked)
    except SpecError:
        return  # refused in so many words: that is allowed, ignoring it is not
    equal(await workdir(box), asked, "the working directory")
    await box.write("file", bench.nonce)
    equal((await box.read(f"{asked}/file")).decode(), bench.nonce, "a file written there by a relative name")


@case(
    promise="`cwd` is where an action starts: absolute, or relative to the working directory.",
    why="Agents send `cd` with every command where this is wrong, and lose it with the next one.",
)
async def cwd(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.make_dir("sub dir/deep")
    here = await workdir(box)
    deep = f"{here.rstrip('/')}/sub dir/deep"  # many an image works in /
    for asked in (deep, "sub dir/deep"):
        seen = await box.run(scripts.PRINT_WORKDIR, cwd=asked)
        equal(seen.stdout.decode(), f"{deep}\n", f"where an action with cwd={asked!r} starts")
        seen = await box.run(["pwd"], cwd=asked)
        equal(seen.stdout.decode(), f"{deep}\n", f"where an Exec with cwd={asked!r} starts")
    equal(await workdir(box), here, "where the next action starts")


@case(
    promise="An action whose `cwd` is not there fails and runs nowhere else.",
    why="`rm -rf *` in the wrong directory: running somewhere else is the worst answer to a missing one.",
)
async def cwd_missing(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.TOUCH_RAN, cwd="nowhere")
    expect(not seen.ok and seen.end is End.EXITED, f"a missing cwd is told as {told(seen)}")
    expect(not await exists(box, "ran"), "the command ran in another directory")


@case(
    promise="What is given as stdin arrives whole, while output is read at the same time.",
    why="Writing all of stdin before reading anything deadlocks once both pipes are full.",
)
async def stdin_reaches(bench: Bench) -> None:
    box = await bench.sandbox()
    data = os.urandom(MEBIBYTE)
    seen = await box.run(scripts.COPY_STDIN, stdin=data)
    succeeded(seen, "`cat`")
    expect(seen.stdout == data, f"{len(data)} bytes went in, {len(seen.stdout)} came out, or others")


@case(
    promise="Without stdin a program that reads sees the end at once.",
    why="An inherited or open stdin makes `cat`, `python` or `git` wait for a terminal until the timeout.",
)
async def stdin_empty_is_eof(bench: Bench) -> None:
    box = await bench.sandbox()
    for seen in (await box.run(scripts.COPY_STDIN), await box.run(["cat"])):
        equal((seen.end, seen.exit_code, seen.stdout), (End.EXITED, 0, b""), "how `cat` without stdin ended")


@case(
    promise="A program that ends without reading its stdin ends as it would have.",
    why="A broken pipe on the way in is no failure of the command, and none of the machinery.",
)
async def stdin_unread_is_fine(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.EXIT_3, stdin=bytes(MEBIBYTE))
    equal((seen.end, seen.exit_code), (End.EXITED, 3), "how a command that left its stdin unread ended")


@case(
    promise="Actions run at the same time, and one may wait for what another does.",
    why="A lock around `run` deadlocks the first agent that starts a server and then talks to it.",
)
async def concurrent_actions(bench: Bench) -> None:
    box = await bench.sandbox()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(box.run(scripts.WAIT_FOR_GO))
        group.create_task(box.run(scripts.MAKE_GO))
    seen = waiting.result()
    equal((seen.end, seen.stdout), (End.EXITED, b"went\n"), "the answer of an action that waited for another")


@case(
    promise="Twenty actions at once all run, and each gets its own answer.",
    why="Small pools of threads or connections serialise silently, and answers get swapped under load.",
)
async def many_at_once(bench: Bench) -> None:
    box = await bench.sandbox()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(box.run(sh(scripts.WAIT_FOR_GO_AND_SAY, str(n)))) for n in range(20)]
        group.create_task(box.run(scripts.MAKE_GO))
    equal([t.result().stdout for t in tasks], [f"{n}\n".encode() for n in range(20)], "the twenty answers")


@case(
    promise="A Batch runs its actions in order and answers each.",
    why="One round trip is only worth having if it means the same as several.",
)
async def batch_in_order(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(Batch((Write("file", b"made"), Shell(scripts.CAT_FILE), Exec(("rm", "file")), Shell(scripts.ECHO_OK))))
    succeeded(seen, "the batch")
    equal([p.stdout for p in seen.parts], [b"", b"made", b"", b"ok\n"], "the parts' outputs")
    expect(not await exists(box, "file"), "the third part did not run")


@case(
    promise="A Batch stops at the first part that fails, and shows that part last.",
    why="Running on after a failed step builds a wrong state that looks right.",
)
async def batch_stops_at_failure(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(Batch((Shell(scripts.ECHO_OK), Shell(scripts.EXIT_3), Shell(scripts.TOUCH_RAN))))
    equal((seen.ok, len(seen.parts), seen.exit_code), (False, 2, 3), "ok, number of parts and exit code")
    seen = await box.run(Batch((Read("missing"), Shell(scripts.TOUCH_RAN))))
    equal((seen.ok, len(seen.parts)), (False, 1), "ok and number of parts after a file action that failed")
    expect(not await exists(box, "ran"), "a part after the failed one ran")


@case(
    promise="With stop_on_failure=False every part of a Batch runs, and the whole is not ok.",
    why="Cleaning up wants every part tried; reporting success then hides what failed.",
)
async def batch_goes_on(bench: Bench) -> None:
    box = await bench.sandbox()
    actions = (Shell(scripts.EXIT_3), Read("missing"), Shell(scripts.TOUCH_RAN))
    seen = await box.run(Batch(actions, stop_on_failure=False))
    equal((seen.ok, [p.ok for p in seen.parts]), (False, [False, False, True]), "ok, of the whole and of the parts")
    expect(seen.parts[1].errno is not None, "the file action that failed has no errno")
    expect(await exists(box, "ran"), "the part after the failed ones did not run")


@case(
    promise="`guest_ns` is the action's own time: no less than it slept, no more than the caller waited.",
    why="The tax is wall time minus this number; a clock that counts something else measures nothing.",
    needs=("guest_clock",),
)
async def guest_clock_is_plausible(bench: Bench) -> None:
    box = await bench.sandbox()
    begun_ns = now_ns()
    seen = await box.run(scripts.NAP)
    waited_ns = now_ns() - begun_ns
    expect(seen.guest_ns is not None, "guest_ns is missing")
    guest_ns = seen.guest_ns or 0
    # Two clocks of one machine may differ by a little; a hundredth is far more than that.
    expect(guest_ns >= 0.99 * 200_000_000, f"guest_ns is {guest_ns} for a command that sleeps 200,000,000 ns")
    expect(guest_ns <= 1.01 * waited_ns, f"guest_ns is {guest_ns}, though the caller waited only {waited_ns} ns")
