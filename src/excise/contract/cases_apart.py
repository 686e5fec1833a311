"""Apart: from other sandboxes, from the host, from earlier lives; and secrets from every text."""

import asyncio
import logging
import os
import shutil
import socket
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from excise.action import Exec, Shell
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded
from excise.contract.watch import exists, sh
from excise.errors import CreateError
from excise.spec import Mount, Secret, Step
from excise.trace import Trace, recording


@case(
    promise="Two sandboxes have working directories of their own.",
    why="Two rollouts of one task use the same names; sharing a directory mixes their answers.",
)
async def sandboxes_share_no_workdir(bench: Bench) -> None:
    one, two = await asyncio.gather(bench.sandbox(), bench.sandbox())
    await one.write("file", b"of one")
    expect(not await exists(two, "file"), "a file of one sandbox is in the other's working directory")
    await two.write("file", b"of two")
    equal(await one.read("file"), b"of one", "the file, after the other sandbox wrote its own")


@case(
    promise="A fresh sandbox is fresh: nothing of an earlier one is in it.",
    why="Reused sandboxes look fast in a benchmark and leak one rollout's work into the next.",
)
async def fresh_means_fresh(bench: Bench) -> None:
    paths = [f"left-{bench.nonce}"]
    if "files" in bench.capabilities.isolates:
        paths += [f"/tmp/left-{bench.nonce}", f"/dev/shm/left-{bench.nonce}"]
    box = await bench.sandbox()
    for path in paths:
        await box.write(path, b"x")
    await box.close()
    box = await bench.sandbox()
    for path in paths:
        expect(not await exists(box, path), f"{path} of an earlier sandbox is in a new one")


@case(
    promise="No file of one sandbox is visible in another or on the host, nor the host's inside.",
    why="What a policy can read it can use: other rollouts' answers, the grader, the trainer's keys.",
    needs=("isolates.files",),
)
async def sandboxes_share_no_files(bench: Bench) -> None:
    one, two = await asyncio.gather(bench.sandbox(), bench.sandbox())
    for folder in ("/tmp", "/dev/shm"):
        path = f"{folder}/excise-{bench.nonce}"
        await one.write(path, b"x")
        expect(not await exists(two, path), f"{path} of one sandbox is visible in another")
        expect(not _on_host(path), f"{path} of a sandbox is visible on the host")
    with tempfile.NamedTemporaryFile() as planted:
        expect(not await exists(two, planted.name), f"the host's {planted.name} is visible inside")


@case(
    promise="No process of one sandbox or of the host is visible in another.",
    why="Command lines and environments of others hold their secrets, and what is visible can often be killed.",
    needs=("isolates.processes",),
)
async def sandboxes_share_no_processes(bench: Bench) -> None:
    one, two = await asyncio.gather(bench.sandbox(), bench.sandbox())
    bench.begin(one.run(Exec(("sh", "-c", scripts.SAY_PID_AND_STAY, bench.nonce))))
    pid = (await one.run(scripts.WAIT_FOR_PID)).stdout.decode().strip()
    expect(bench.nonce.encode() in await one.read("own"), "a process does not see its own command line")
    # Another sandbox may well have a process of that number: whose it is, its command line tells.
    seen = await two.run(sh(scripts.COMMAND_LINE_OF, pid))
    expect(bench.nonce.encode() not in seen.stdout, "a process of one sandbox is visible in another")
    seen = await two.run(sh(scripts.COMMAND_LINE_OF, str(os.getpid())))
    expect(seen.stdout != _own_command_line(), "a process of the host is visible inside")


def _on_host(path: str) -> bool:
    return os.path.lexists(path)


def _own_command_line() -> bytes:
    return Path("/proc/self/cmdline").read_bytes()


@contextmanager
def _listening() -> Generator[bytes]:
    """A port of the host that is listened on, as /proc/net/tcp spells it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f":{server.getsockname()[1]:04X} ".encode()


@case(
    promise="network='none' said aloud is enforced: no route out, and nothing of the host's network inside.",
    why="A policy with a network looks the answer up, or sends the data out.",
    needs=("network.none",),
)
async def network_none(bench: Bench) -> None:
    box = await bench.sandbox(network="none")
    routes = (await box.run(scripts.ROUTES)).stdout.decode().splitlines()[1:]
    expect(not routes, f"there is a route out: {routes[:1]}")
    with _listening() as port:
        seen = await box.run(scripts.LISTENERS)
        expect(port not in seen.stdout, "the host's listening ports are those of the sandbox")


@case(
    promise="A sandbox that isolates the network has ports of its own.",
    why="Two rollouts that start the same server on the same port must not meet.",
    needs=("isolates.network",),
)
async def sandboxes_share_no_network(bench: Bench) -> None:
    box = await bench.sandbox()
    with _listening() as port:
        seen = await box.run(scripts.LISTENERS)
        expect(port not in seen.stdout, "the host's listening ports are those of the sandbox")


@case(
    promise="A sandbox that isolates IPC shares no System V objects or message queues with another or with the host.",
    why="Semaphores with fixed keys make two test suites wait for each other.",
    needs=("isolates.ipc",),
)
async def sandboxes_share_no_ipc(bench: Bench) -> None:
    await _own_namespaces(bench, scripts.IPC_NAMESPACE, "/proc/self/ns/ipc")


@case(
    promise="A sandbox that isolates users runs under ids that are nobody's on the host.",
    why="Root inside that is root outside is one kernel bug away from the host.",
    needs=("isolates.users",),
)
async def sandboxes_share_no_users(bench: Bench) -> None:
    await _own_namespaces(bench, scripts.USER_NAMESPACE, "/proc/self/ns/user")
    if bench.capabilities.kernel != "shared":
        return
    one, two = await asyncio.gather(bench.sandbox(), bench.sandbox())
    ids = [_outside((await box.run(scripts.IDS_OUTSIDE)).stdout) for box in (one, two)]
    for own in (0, os.getuid()):
        expect(not any(own in each for some in ids for each in some), f"a sandbox has the host's user {own}")
    expect(not any(a.start < b.stop and b.start < a.stop for a in ids[0] for b in ids[1]), "two sandboxes have the same users")


def _outside(uid_map: bytes) -> list[range]:
    """The host's ids that a sandbox's are."""
    rows = [line.split() for line in uid_map.splitlines()]
    return [range(int(first), int(first) + int(count)) for _, first, count in rows]


_LOOKS = 5
"""Where a namespace ends with its action, the kernel may give its number to the next; one that is shared is always the same."""


async def _own_namespaces(bench: Bench, script: str, path: str) -> None:
    """Kernels of their own may show no namespaces, or count them alike: then there is nothing to compare."""
    if bench.capabilities.kernel != "shared":
        return
    one, two = await asyncio.gather(bench.sandbox(), bench.sandbox())
    different = 0
    for _ in range(_LOOKS):
        seen = [(await box.run(script)).stdout.strip() for box in (one, two)]
        expect(all(seen), f"{path} cannot be read inside")
        different = max(different, len({*seen, _link(path)}))
        if different == 3:
            break
    equal(different, 3, f"the number of different {path} in two sandboxes and the host")


def _link(path: str) -> bytes:
    return os.readlink(path).encode()  # noqa: PTH115 - the bytes are all that is wanted


@case(
    promise="user= is who an action runs as, and the spec's user= who all of them run as.",
    why="Tests that must fail without permission pass as root.",
    needs=("users",),
)
async def user_is_honoured(bench: Bench) -> None:
    box = await bench.sandbox()
    equal((await box.run(["id", "-u"], user="65534")).stdout, b"65534\n", "the action's user")
    equal((await box.run(scripts.PRINT_USER, user="65534")).stdout, b"65534\n", "the user of a script")
    box = await bench.sandbox(user="65534")
    equal((await box.run(scripts.PRINT_USER)).stdout, b"65534\n", "the user of an action in a sandbox with a user")


@case(
    promise="A mounted host directory is there, and read-only unless asked otherwise.",
    why="A dataset that rollouts can write to is another dataset after the first of them.",
    needs=("mounts",),
)
async def mount_is_there(bench: Bench) -> None:
    folder = Path(tempfile.mkdtemp(prefix="excise-contract-"))
    try:
        (folder / "given").write_text(bench.nonce)
        box = await bench.sandbox(mounts=(Mount(str(folder), "/mnt/excise"),))
        equal((await box.run(scripts.CAT_MOUNTED)).stdout.decode(), bench.nonce, "a file of the mounted directory")
        expect(not (await box.run(scripts.WRITE_MOUNTED)).ok, "writing to a read-only mount succeeded")
        expect(not (folder / "new").exists(), "a file written inside is in the host's directory")
        await box.close()
        equal((folder / "given").read_text(), bench.nonce, "the host's file after the sandbox was closed")
    finally:
        shutil.rmtree(folder)


@case(
    promise="A secret reaches actions as an environment variable.",
    why="Secrets that do not work get written into scripts instead.",
)
async def secret_reaches_the_action(bench: Bench) -> None:
    box = await bench.sandbox(secrets={"TOKEN": Secret(bench.nonce)})
    equal((await box.run(scripts.PRINT_TOKEN)).stdout.decode(), bench.nonce, "the secret as a script sees it")
    equal((await box.run(["sh", "-c", scripts.PRINT_TOKEN])).stdout.decode(), bench.nonce, "the secret as an Exec sees it")
    if bench.capabilities.sessions:
        seen = await box.run(scripts.PRINT_TOKEN, session="main")
        equal(seen.stdout.decode(), bench.nonce, "the secret as a session sees it")


@case(
    promise="A secret enters no key, snapshot, list, trace, log or error text.",
    why="Error texts and logs end up in tickets and dashboards, and a snapshot is handed to others.",
)
async def secret_in_no_text(bench: Bench) -> None:
    value = f"secret{bench.nonce[::-1]}"
    secrets = {"TOKEN": Secret(value)}
    texts: dict[str, str] = {}
    with _logged() as lines, recording(Trace()) as trace:
        box = await bench.sandbox(secrets=secrets)
        succeeded(await box.run(scripts.PRINT_TOKEN), "an action that prints the secret")
        texts["the spec"] = repr(bench.changed(secrets=secrets))
        if bench.capabilities.attach:
            texts["list"] = repr(await bench.substrate.list(bench.labels))
        if bench.capabilities.snapshot:
            snapshot = await box.snapshot()
            texts["the snapshot"] = repr(snapshot)
            await bench.substrate.discard(snapshot)
        texts["the error of a step that printed it"] = await _failed_step(bench, secrets)
    texts["the trace"] = repr(trace.spans)
    texts["the log"] = "\n".join(lines)
    for where, text in texts.items():
        expect(value not in text, f"a secret is in the text of {where}")


async def _failed_step(bench: Bench, secrets: dict[str, Secret]) -> str:
    try:
        await bench.sandbox(secrets=secrets, steps=(Step("prints", (Shell(scripts.STEP_PRINTS_TOKEN),)),))
    except CreateError as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("a sandbox whose step failed was handed out")


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _logged() -> Generator[list[str]]:
    """Everything any logger says meanwhile, at whatever level."""
    root, handler = logging.getLogger(), _Lines()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
