"""The start state: steps, boot and ready; and snapshot, reset and fork, which lead back to it."""

import posixpath

from excise.action import Shell, Write
from excise.contract import scripts
from excise.contract.bench import CREATE_S, Bench
from excise.contract.case import broken, case, equal, expect, succeeded, told
from excise.contract.watch import beating, exists, nap
from excise.errors import CreateError, ExciseError, SandboxLost
from excise.sandbox import Sandbox
from excise.spec import Secret, Step
from excise.substrate import Snapshot

SNAPSHOT = ("snapshot",)


@case(
    promise="A spec's steps run in order, before the sandbox is handed out.",
    why="A dependency installed before the checkout it belongs to is another state under the same name.",
)
async def steps_run_in_order(bench: Bench) -> None:
    steps = (
        Step("first", (Shell(scripts.STEP_1), Shell(scripts.STEP_2))),
        Step("second", (Shell(scripts.STEP_3), Write("made", b"by a step"))),
    )
    box = await bench.sandbox(steps=(*bench.spec.steps, *steps))
    equal(await box.read("order"), b"1\n2\n3\n", "what the steps wrote, in order")
    equal(await box.read("made"), b"by a step", "what a step's file action wrote")


@case(
    promise="A step that fails is a CreateError that names the step and shows what it printed; nothing is left.",
    why="Half-prepared sandboxes that are handed out all the same fail every test, and the policy is blamed.",
)
async def failed_step_is_create_error(bench: Bench) -> None:
    steps = (Step("goes-well", (Shell(scripts.STEP_1),)), Step("breaks-here", (Shell(scripts.STEP_FAILS),)))
    try:
        await bench.sandbox(steps=steps)
    except CreateError as error:
        for word in ("breaks-here", "went-wrong"):
            expect(word in str(error), f"the error does not mention {word!r}: {error}")
    else:
        broken("a sandbox whose step failed was handed out")
    if bench.capabilities.attach:
        expect(not await bench.substrate.list(bench.labels), "a sandbox is left after a step that failed")


@case(
    promise="boot commands run and are left running, and ready probes pass, before the sandbox is handed out.",
    why="A rollout that meets a database still starting up loses to a race it cannot see.",
    needs=("stream", "background"),
)
async def boot_runs_and_ready_passes(bench: Bench) -> None:
    box = await bench.sandbox(boot=(Shell(scripts.BOOT),), ready=(Shell(scripts.IS_UP),))
    expect(await exists(box, "up"), "the sandbox was handed out before its ready probe passed")
    await beating(box, "what boot started")


async def snapshot_of(bench: Bench, box: Sandbox, keep_s: float | None = None) -> Snapshot:
    """A snapshot that is discarded at the case's end."""
    snapshot = await box.snapshot(keep_s=keep_s)

    async def discard() -> None:
        await bench.substrate.discard(snapshot)

    bench.at_end(discard)
    return snapshot


@case(
    promise="reset brings every file back: changed, removed and added ones, /tmp and /dev/shm included.",
    why="`git clean` misses what is ignored, and a cache in /tmp makes the second rollout differ from the first.",
    needs=SNAPSHOT,
)
async def reset_restores_files(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("changed", b"before", mode=0o640)
    await box.write("removed", b"before")
    snapshot = await snapshot_of(bench, box)
    added = ["added", "new/deep"]
    if "files" in bench.capabilities.isolates:
        added += [f"/tmp/{bench.nonce}", f"/dev/shm/{bench.nonce}"]
    for _ in range(2):
        await box.write("changed", b"after", mode=0o600)
        await box.remove("removed")
        for path in added:
            await box.write(path, b"after")
        await box.reset(snapshot)
        equal((await box.read("changed"), await box.read("removed")), (b"before", b"before"), "the files after a reset")
        equal((await box.stat("changed")).mode & 0o7777, 0o640, "a file's mode after a reset")
        for path in added:
            expect(not await exists(box, path), f"{path} is still there after a reset")


@case(
    promise="reset ends every process started since the snapshot.",
    why="A server of the last rollout answers the next one's requests, from the last one's state.",
    needs=(*SNAPSHOT, "background"),
)
async def reset_kills_processes(bench: Bench) -> None:
    box = await bench.sandbox()
    snapshot = await snapshot_of(bench, box)
    succeeded(await box.run(scripts.LEAVE_BEAT), "leaving a process running")
    await beating(box, "the process that was left running")
    await box.reset(snapshot)
    await nap(box)
    expect(not await exists(box, "beat"), "a process from before the reset went on writing")


@case(
    promise="reset forgets sessions begun since the snapshot.",
    why="A variable of the last rollout in the next one's shell is a state nobody asked for.",
    needs=(*SNAPSHOT, "sessions"),
)
async def reset_forgets_sessions(bench: Bench) -> None:
    box = await bench.sandbox()
    snapshot = await snapshot_of(bench, box)
    succeeded(await box.run(scripts.SET_PLAIN, session="main"), "setting a variable")
    await box.reset(snapshot)
    equal((await box.run(scripts.SHOW_PLAIN, session="main")).stdout, b"[]\n", "a session's variable after a reset")


@case(
    promise="After a reset what boot commands start runs again, or still, and ready probes pass again.",
    why="A reset that brings the files back but not the services hands out a broken start state.",
    needs=(*SNAPSHOT, "stream", "background"),
)
async def reset_runs_boot(bench: Bench) -> None:
    box = await bench.sandbox(boot=(Shell(scripts.BOOT),), ready=(Shell(scripts.IS_UP), Shell(scripts.COUNT_PROBE)))
    snapshot = await snapshot_of(bench, box)
    await box.reset(snapshot)
    equal(await box.read("probes"), b"probe\nprobe\n", "what ready probes wrote, once at create and once at reset")
    await beating(box, "what boot started")


@case(
    promise="No answer of an earlier life is delivered after a reset: an action it cut off is SandboxLost.",
    why="Yesterday's output under today's command is the worst of wrong observations.",
    needs=SNAPSHOT,
)
async def no_answer_across_reset(bench: Bench) -> None:
    box = await bench.sandbox()
    snapshot = await snapshot_of(bench, box)
    task = bench.begin(box.run(scripts.SAY_STARTED_THEN_SLEEP))
    succeeded(await box.run(scripts.WAIT_FOR_STARTED), "waiting for the action to begin")
    await box.reset(snapshot)
    try:
        seen = await task
    except SandboxLost:
        pass
    else:
        broken(f"an action from before the reset returned: {told(seen)}")
    equal((await box.run(scripts.ECHO_OK)).stdout, b"ok\n", "the first answer after the reset")


@case(
    promise="fork gives siblings with the same start state, which then go their own ways.",
    why="A group is compared within itself: a sibling that sees another's files spoils the comparison.",
    needs=SNAPSHOT,
)
async def fork_gives_the_same_start(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("file", bench.nonce)
    async with box.fork(3) as group:
        ids = {box.id, *(child.id for child in group)}
        equal(len(ids), 4, "the number of different sandboxes")
        for number, child in enumerate(group):
            equal((await child.read("file")).decode(), bench.nonce, "a file from before the fork")
            await child.write("file", f"changed by {number}")
        for number, child in enumerate(group):
            equal((await child.read("file")).decode(), f"changed by {number}", "a file a sibling changed for itself")
    equal((await box.read("file")).decode(), bench.nonce, "the file in the sandbox that was forked")


@case(
    promise="A snapshot outlives its sandbox, until it is discarded; sandboxes made from it live on after that.",
    why="The state a group starts from must not die with the sandbox it was taken of.",
    needs=SNAPSHOT,
)
async def snapshot_outlives_its_sandbox(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("file", bench.nonce)
    snapshot = await box.snapshot()
    await box.close()
    again = await bench.sandbox(snapshot)
    equal((await again.read("file")).decode(), bench.nonce, "a file of the snapshot, in a sandbox made later")
    await bench.substrate.discard(snapshot)
    equal((await again.read("file")).decode(), bench.nonce, "the same after the snapshot was discarded")
    try:
        await bench.handle(snapshot, deadline_s=CREATE_S)
    except ExciseError:
        return
    broken("a sandbox was made from a discarded snapshot")


@case(
    promise="A kept snapshot outlives its sandbox and is listed, without a secret, until it is discarded.",
    why="A state that took an hour to reach must be found again by the run that needs it next.",
    needs=SNAPSHOT,
)
async def kept_snapshot_is_listed(bench: Bench) -> None:
    box = await bench.sandbox(secrets={"TOKEN": Secret(f"{bench.nonce}-secret")})
    await box.write("file", bench.nonce)
    kept = await snapshot_of(bench, box, keep_s=3600)
    await box.close()
    listed = {one.id: one for one in await bench.substrate.snapshots()}
    expect(kept.id in listed, "a snapshot that is kept is not listed")
    expect(f"{bench.nonce}-secret" not in repr(listed[kept.id]), "a listed snapshot shows a secret")
    again = await bench.sandbox(listed[kept.id])
    equal((await again.read("file")).decode(), bench.nonce, "a file of a snapshot that was kept, in a sandbox made later")
    await bench.substrate.discard(listed[kept.id])
    expect(kept.id not in {one.id for one in await bench.substrate.snapshots()}, "a discarded snapshot is listed")


@case(
    promise="A snapshot keeps the directory and the exported variables of every session, for resets and forks.",
    why="An agent that had changed into the repository and activated its environment would go on elsewhere, without it.",
    needs=(*SNAPSHOT, "sessions"),
)
async def snapshot_keeps_sessions(bench: Bench) -> None:
    box = await bench.sandbox()
    succeeded(await box.run(scripts.MOVE_AND_EXPORT, session="main"), "changing directory and exporting a variable")
    snapshot = await snapshot_of(bench, box)
    workdir = (await box.run(scripts.PRINT_WORKDIR)).stdout.decode().strip()
    # Where processes are carried, the shell itself is, with what it has not exported.
    plain = "one" if snapshot.carries == "processes" else ""
    wanted = posixpath.join(workdir, "a b") + f"\n[it's two]\n[{plain}]\n"
    await box.reset(snapshot)
    equal((await box.run(scripts.SHOW_MOVED, session="main")).text, wanted, "a session's state after a reset")
    async with box.fork(2) as group:  # of a session that was itself carried
        for child in group:
            equal((await child.run(scripts.SHOW_MOVED, session="main")).text, wanted, "a session's state in a fork")
    other = await box.run(scripts.SHOW_MOVED, session="other")
    equal(other.text, f"{workdir}\n[]\n[]\n", "another session's state")


@case(
    promise="A snapshot of files keeps neither /tmp nor /dev/shm: both are empty after every reset and fork.",
    why="They are memory on one substrate and files on another; a start state must not depend on which.",
    needs=("snapshot.files", "isolates.files"),
)
async def snapshot_keeps_no_tmp(bench: Bench) -> None:
    box = await bench.sandbox()
    paths = [f"/tmp/{bench.nonce}", f"/tmp/.{bench.nonce}/deep", f"/dev/shm/{bench.nonce}"]
    for path in paths:
        await box.write(path, b"before")
    snapshot = await snapshot_of(bench, box)
    for path in paths:
        expect(await exists(box, path), f"the snapshot took {path} from its sandbox")
    await box.reset(snapshot)
    for again in (box, await bench.sandbox(snapshot)):
        for path in ("/tmp", "/dev/shm"):
            equal([entry.name for entry in await again.list(path)], [], f"what is in {path} of a snapshot")


@case(
    promise="A secret is in no snapshot, also not by way of a session's variables; sandboxes of it have it all the same.",
    why="Snapshots are kept, listed and shared by people who were never given the secret.",
    needs=SNAPSHOT,
)
async def snapshot_keeps_no_secret(bench: Bench) -> None:
    box = await bench.sandbox(secrets={"TOKEN": Secret(bench.nonce)})
    if bench.capabilities.sessions:
        succeeded(await box.run(scripts.EXPORT_TOKEN, session="main"), "exporting a copy of a secret")
    snapshot = await snapshot_of(bench, box)
    expect(bench.nonce not in repr(snapshot), "the snapshot shows a secret")
    again = await bench.sandbox(snapshot)
    equal((await again.run(scripts.PRINT_TOKEN)).stdout.decode(), bench.nonce, "the secret in a sandbox of the snapshot")
