"""Create, deadlines, leases, close; and what the sandbox's limits did, told apart from what the machinery did."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from excise.action import End, Shell
from excise.contract import scripts
from excise.contract.bench import ACTION_S, Bench
from excise.contract.case import broken, case, equal, expect, succeeded, told
from excise.contract.watch import expect_no_growth, sh, silent, workdir
from excise.errors import ExciseError, SandboxLost, SubstrateError
from excise.spec import Limits

MEBIBYTE = 1 << 20
CANCEL_STEPS = (0, 1, 2, 3, 5, 8, 13)
CANCEL_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)


async def _none_left(bench: Bench, after: str) -> None:
    """Where sandboxes can be listed, none of this case's is."""
    if bench.capabilities.attach:
        left = await bench.substrate.list(bench.labels)
        expect(not left, f"{len(left)} sandboxes are left after {after}")


@case(
    promise="create keeps its deadline: if no sandbox can be had in time it is a SubstrateError, and nothing is left.",
    why="A create that hangs stalls a batch of rollouts; one that is given up on but goes on fills the host.",
)
async def create_keeps_its_deadline(bench: Bench) -> None:
    try:
        await bench.handle(deadline_s=0.0)
    except SubstrateError:
        await _none_left(bench, "a create that was too late")
    else:
        broken("a create with no time at all succeeded")
    succeeded(await (await bench.sandbox()).run(scripts.TRUE), "an action in the sandbox made after it")


@case(
    promise="A sandbox that does not get ready in time is a SubstrateError, and nothing is left.",
    why="A service that never comes up is the machinery's failure, never the policy's, and must not hold a slot.",
)
async def ready_keeps_its_deadline(bench: Bench) -> None:
    box = bench.unopened(wait_s=2.0, ready=(Shell(scripts.NEVER_READY),))
    try:
        await box.open()
    except SubstrateError:
        await _none_left(bench, "a sandbox that did not get ready")
    else:
        broken("a sandbox whose ready probe fails was handed out")


@case(
    promise="The same request_id twice gives the same sandbox, not two.",
    why="A create that is sent again after a lost answer otherwise leaks a sandbox each time.",
)
async def request_id_is_idempotent(bench: Bench) -> None:
    request_id = uuid.uuid4().hex
    first, second = await asyncio.gather(bench.handle(request_id=request_id), bench.handle(request_id=request_id))
    third = await bench.handle(request_id=request_id)
    equal((second.id, third.id), (first.id, first.id), "the ids of sandboxes made with one request_id")
    other = await bench.handle()
    expect(other.id != first.id, "another request_id gave the same sandbox")
    if bench.capabilities.attach:
        equal(len(await bench.substrate.list(bench.labels)), 2, "the number of sandboxes made")


@case(
    promise="Cancelling a create at any await leaks nothing.",
    why="Trainers cancel whole batches; a container a cancelled create leaves behind is nobody's to remove.",
    alone=True,
)
async def cancel_create_leaks_nothing(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    box = await bench.sandbox()  # also opens what a substrate keeps open for later
    whole_s = loop.time() - begun
    await box.close()

    async def rounds() -> int:
        for steps in CANCEL_STEPS:
            await _cancelled_open(bench, steps, 0.0)
        for share in CANCEL_SHARES:
            await _cancelled_open(bench, 0, share * whole_s)
        await _none_left(bench, "cancelled creates")
        return len(CANCEL_STEPS) + len(CANCEL_SHARES)

    await expect_no_growth(rounds)
    succeeded(await (await bench.sandbox()).run(scripts.TRUE), "an action in the sandbox made after them")


async def _cancelled_open(bench: Bench, steps: int, wait_s: float) -> None:
    box = bench.unopened()
    task = bench.begin(box.open())
    for _ in range(steps):
        await asyncio.sleep(0)
    if wait_s:
        await asyncio.wait({task}, timeout=wait_s)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await box.close()


@case(
    promise="close() twice is fine, also at the same time.",
    why="Clean-up runs from more than one place; an error there hides the one that mattered.",
)
async def close_twice(bench: Bench) -> None:
    handle = await bench.handle()
    await handle.close()
    await handle.close()
    handle = await bench.handle()
    await asyncio.gather(handle.close(), handle.close())
    await _none_left(bench, "close")


@case(
    promise="A closed sandbox is lost: every verb raises SandboxLost, none returns a result.",
    why="An empty output with exit code -1 from a container that is gone gets scored as a failed test.",
)
async def closed_handle_is_lost(bench: Bench) -> None:
    handle = await bench.handle()
    await handle.close()
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "run": partial(handle.run, Shell(scripts.TRUE)),
        "renew": partial(handle.renew, 60.0),
        "ready": handle.ready,
        "alive": handle.alive,
        "adopt": partial(handle.adopt, bench.spec),
    }
    for what, verb in verbs.items():
        try:
            answer = await verb()
        except SandboxLost:
            continue
        broken(f"{what} after close returned {answer!r} and did not raise SandboxLost")


@case(
    promise="The machinery's death under a running action is SandboxLost in that action, never its result.",
    why="A node that dies must not teach a policy that its last command was wrong.",
)
async def lost_is_not_a_result(bench: Bench) -> None:
    handle = await bench.handle()
    task = bench.begin(handle.run(Shell(scripts.SAY_STARTED_THEN_SLEEP)))
    succeeded(await handle.run(Shell(scripts.WAIT_FOR_STARTED, timeout_s=ACTION_S)), "waiting for the action to begin")
    await handle.close()
    try:
        seen = await task
    except SandboxLost:
        return
    broken(f"an action whose sandbox was closed under it returned: {told(seen)}")


@case(
    promise="Nothing of a closed sandbox is left: no process, no directory, no entry, no descriptor.",
    why="A machine that runs a million rollouts finds every leak of one.",
    alone=True,
)
async def close_leaves_nothing(bench: Bench) -> None:
    await (await bench.sandbox()).close()  # opens what a substrate keeps open for later

    async def rounds() -> int:
        for _ in range(4):
            box = await bench.sandbox()
            succeeded(await box.run(scripts.ECHO_OK), "an action")
            await box.close()
        await _none_left(bench, "close")
        return 4

    await expect_no_growth(rounds)
    if "files" not in bench.capabilities.isolates:
        await _seen_from_beside(bench)


async def _seen_from_beside(bench: Bench) -> None:
    """Where sandboxes share a file system, one sees what another leaves of itself."""
    box, beside = await bench.sandbox(), await bench.sandbox()
    left, beat = await workdir(box), f"{await workdir(beside)}/beat"
    task = bench.begin(box.run(sh(scripts.BEAT_THERE, beat)))
    succeeded(await beside.run(scripts.WAIT_FOR_BEAT), "waiting for the action to begin")
    await box.close()
    with suppress(ExciseError):
        await task
    await silent(beside, "a process of the closed sandbox")
    expect(not (await beside.run(sh(scripts.IS_THERE, left))).ok, "the closed sandbox's working directory is left")


@case(
    promise="A lease can be renewed, and its end moves.",
    why="A rollout that takes longer than it thought must not have its sandbox collected under it.",
)
async def renew_lease(bench: Bench) -> None:
    handle = await bench.handle(lease_s=100.0)
    await handle.renew(5000.0)
    if bench.capabilities.attach:
        (listed,) = await bench.substrate.list(bench.labels)
        expect((listed.lease_left_s or 0) > 100.0, f"after renew(5000) the lease has {listed.lease_left_s} s left")
    succeeded(await handle.run(Shell(scripts.TRUE)), "an action after renew")


@case(
    promise="Running into the sandbox's memory limit is an Observation that says so; the sandbox lives on.",
    why="The policy's doing must be told from the host's shortage: the one is scored, the other sampled again.",
    needs=("limits.memory_bytes",),
)
async def memory_limit_is_told(bench: Bench) -> None:
    box = await bench.sandbox(limits=Limits(memory_bytes=64 * MEBIBYTE))
    seen = await box.run(scripts.EAT_256_MIB)
    expect(b"survived" not in seen.stdout, "256 MiB were used under a limit of 64 MiB")
    expect(seen.end is End.OUT_OF_MEMORY, f"running out of memory is told as {told(seen)}")
    seen = await box.run(scripts.ECHO_OK)
    equal(seen.stdout, b"ok\n", "the next action's answer")


@case(
    promise="Running into the sandbox's limit on processes is an Observation that says so.",
    why="A fork bomb of the policy must neither take the host down nor look like a broken host.",
    needs=("limits.pids",),
)
async def pids_limit_is_told(bench: Bench) -> None:
    box = await bench.sandbox(limits=Limits(pids=32))
    seen = await box.run(scripts.START_64_PROCESSES)
    expect(b"survived" not in seen.stdout, "64 processes were started under a limit of 32")
    expect(seen.end is End.OUT_OF_PIDS, f"running out of processes is told as {told(seen)}")


@case(
    promise="Running into the sandbox's disk limit is an Observation that says so; the sandbox lives on.",
    why="A log that fills the host's disk fails every other rollout on it.",
    needs=("limits.disk_bytes",),
)
async def disk_limit_is_told(bench: Bench) -> None:
    box = await bench.sandbox(limits=Limits(disk_bytes=16 * MEBIBYTE))
    seen = await box.run(scripts.FILL_64_MIB)
    expect(b"survived" not in seen.stdout, "64 MiB were written under a limit of 16 MiB")
    expect(seen.end is End.OUT_OF_DISK, f"running out of disk is told as {told(seen)}")
    seen = await box.run(scripts.REMOVE_BIG)
    equal(seen.stdout, b"small\n", "what can be written once there is room again")
