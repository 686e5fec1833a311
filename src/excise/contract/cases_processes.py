"""Snapshots that carry processes: what ran goes on in every copy, and yet no copy is the machine it was copied from."""

import asyncio

from excise.action import Shell
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded
from excise.contract.cases_states import snapshot_of
from excise.contract.watch import beating
from excise.sandbox import Sandbox

PROCESSES = ("snapshot.processes",)
APART_S = 3.0
"""So long a snapshot is old when it is copied: a clock that stood still with it is behind by as much."""
NEAR_NS = 1_500_000_000


@case(
    promise="Where snapshots carry processes, what ran goes on in resets and forks, and in the sandbox it was taken of.",
    why="A server, a debugger, a notebook's kernel: states that no files hold, and that take minutes to reach again.",
    needs=(*PROCESSES, "background"),
)
async def snapshot_carries_processes(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.LEAVE_BEAT), "leaving a process running")
    await beating(box, "the process that was left running")
    snapshot = await snapshot_of(bench, box)
    equal(snapshot.carries, "processes", "what a snapshot says it carries")
    await beating(box, "after a snapshot, the process it carries")
    await box.reset(snapshot)
    await beating(box, "after a reset, the process that the snapshot carries")
    async with box.fork(2) as group:
        for child in group:
            await beating(child, "in a fork, the process that the snapshot carries")


async def _copies(bench: Bench, script: str) -> list[str]:
    """What `script` prints in two forks, in the sandbox they were forked from, and in that after a reset to the same state."""
    box = await bench.sandbox()
    snapshot = await snapshot_of(bench, box)
    first, second = await bench.sandbox(snapshot), await bench.sandbox(snapshot)
    seen = [await _printed(one, script) for one in (first, second, box)]
    await box.reset(snapshot)
    return [*seen, await _printed(box, script)]


async def _printed(box: Sandbox, script: str) -> str:
    seen = await box.run(Shell(script))
    succeeded(seen, script)
    return seen.stdout.decode()


@case(
    promise="Copies of one memory draw different random numbers.",
    why="Keys, tokens and names of temporary files that siblings share are guessed, or collide.",
    needs=PROCESSES,
)
async def copies_draw_other_numbers(bench: Bench) -> None:
    seen = await _copies(bench, scripts.DRAW)
    equal(len(set(seen)), len(seen), "the number of different random numbers that copies drew")


@case(
    promise="Copies of one memory have machine ids and boot ids of their own.",
    why="What finds its peers or its locks by machine id takes a sibling for itself.",
    needs=PROCESSES,
)
async def copies_have_other_names(bench: Bench) -> None:
    for script in (scripts.MACHINE_ID, scripts.BOOT_ID):
        seen = await _copies(bench, script)
        expect(all(seen), f"`{script}` printed nothing")
        equal(len(set(seen)), len(seen), f"the number of different answers to `{script}` in copies")


@case(
    promise="A copy knows what time it is, however old the memory it was copied from.",
    why="Certificates that are not valid yet, builds that take every file for newer than now.",
    needs=PROCESSES,
)
async def copies_know_the_time(bench: Bench) -> None:
    box = await bench.sandbox()
    snapshot = await snapshot_of(bench, box)
    await asyncio.sleep(APART_S)
    copy = await bench.sandbox(snapshot)
    await box.write("before", b"")
    await copy.write("now", b"")
    await box.write("after", b"")
    early, now, late = (
        (await box.stat("before")).mtime_ns,
        (await copy.stat("now")).mtime_ns,
        (await box.stat("after")).mtime_ns,
    )
    expect(early - NEAR_NS < now < late + NEAR_NS, f"a copy's clock is {(now - early) / 1e9:+.3f} s from its original's")
