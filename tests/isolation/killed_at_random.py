"""Kills a client, a launcher or a guest at seeded random moments, and tells what was left: run by test_killed_at_random.py.

    python killed_at_random.py client|launcher|guest POINTS SEED [ADDRESS]

It is a process of its own because it is a subreaper: whatever loses its parent becomes its child, so "it has no children" means
that nothing is left of all it started, however that detached.
"""

import asyncio
import ctypes
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from excise import Limits, Sandbox, SandboxLost, Spec
from excise.errors import SubstrateError
from excise.host.sandboxes import owner_of
from excise.registry import make
from excise.storage.image import resolve
from excise.substrate import Substrate

PR_SET_CHILD_SUBREAPER = 36
GONE_S = 1.0
LATEST_S = 0.06
"""A create, a snapshot, a few actions, a reset and a close take less."""


class Report:
    """What was seen over all points."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self.wrong: list[str] = []
        self.lost = 0
        self.refused = 0
        self.finished = 0
        self.longest_s = 0.0


async def rollout(substrate: Substrate, spec: Spec, report: Report, done: Callable[[], bool]) -> None:
    """Create, act and close until `done`. What a policy sees must be right, or SandboxLost."""
    while not done():
        try:
            async with Sandbox(substrate, spec, timeout_s=20, wait_s=20) as box:
                await box.write("/state", "sealed\n")
                snapshot = await box.snapshot()
                left = await box.run("setsid sleep 1000 >/dev/null 2>&1 & echo started")
                seen = await box.run(["sh", "-c", "echo hi"])
                session = await box.run("cd /tmp; touch here; echo x > /state; pwd", session="main")
                await box.reset(snapshot)
                fresh = await box.run("cat /state; ls -A /tmp")
                await substrate.discard(snapshot)
            expected = ((left, b"started\n"), (seen, b"hi\n"), (session, b"/tmp\n"), (fresh, b"sealed\n"))
            for observed, wanted in expected:
                if not observed.ok or observed.stdout != wanted:
                    report.wrong.append(f"{observed.end.value} {observed.exit_code}: {observed.text!r}")
            report.finished += 1
        except SandboxLost:
            report.lost += 1
        except SubstrateError:
            report.refused += 1  # by create: no sandbox was there yet, and nothing is scored


# ---- the client is killed


def kill_clients(points: int, chance: random.Random, report: Report, spec: Spec, address: str) -> None:
    """Each client is forked from here, so that none pays for its imports; all that is left of it becomes our child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for point in range(points):
        began, begins = os.pipe()
        pid = os.fork()
        if pid == 0:
            be_client(begins, spec, address)
        os.close(begins)
        os.read(began, 1)
        os.close(began)
        time.sleep(chance.uniform(0, LATEST_S))
        os.kill(pid, signal.SIGKILL)
        note(report, f"point {point}", all_gone_s())


def be_client(begins: int, spec: Spec, address: str) -> None:
    async def main() -> None:
        substrate = make(address)
        os.write(begins, b".")
        await asyncio.gather(*(rollout(substrate, spec, Report(), lambda: False) for _ in range(2)))

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        asyncio.run(main())
    finally:
        os._exit(1)


def all_gone_s() -> float | None:
    """How long until we have no child; None if some are left after the time they have."""
    began_s = time.monotonic()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return time.monotonic() - began_s
        left_s = began_s + GONE_S - time.monotonic()
        if left_s <= 0:
            return None
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def note(report: Report, where: str, took_s: float | None) -> None:
    if took_s is None:
        report.late.append(f"{where}: {describe(children(os.getpid()))} are left after {GONE_S:g} s")
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
    else:
        report.longest_s = max(report.longest_s, took_s)


# ---- the launcher or a guest is killed, and we are the client


async def kill_others(victim: str, points: int, chance: random.Random, report: Report, spec: Spec) -> None:
    substrate = make("namespace")
    try:
        for point in range(points):
            await one_point(substrate, victim, chance.uniform(0, LATEST_S), report, spec)
            note(report, f"point {point}", await below_gone_s(victim))
    finally:
        await substrate.close()


async def one_point(substrate: Substrate, victim: str, delay_s: float, report: Report, spec: Spec) -> None:
    killed = threading.Event()
    killer = threading.Thread(target=kill_after, args=(victim, delay_s, killed))
    killer.start()
    try:
        await asyncio.gather(*(rollout(substrate, spec, report, killed.is_set) for _ in range(2)))
    finally:
        await asyncio.to_thread(killer.join)


def kill_after(victim: str, delay_s: float, killed: threading.Event) -> None:
    """A thread of its own: the loop's clock counts milliseconds, and the moments between them matter as well."""
    time.sleep(delay_s)
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        launchers = children(os.getpid())
        found = launchers if victim == "launcher" else [pid for launcher in launchers for pid in children(launcher)]
        try:
            if found:
                os.kill(found[0], signal.SIGKILL)
                break
        except ProcessLookupError:
            pass  # it was closed just now
    killed.set()


async def below_gone_s(victim: str) -> float | None:
    """As `all_gone_s`; but where a guest was killed its launcher lives."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < GONE_S:
        orphans = [pid for pid in children(os.getpid()) if is_zombie(pid)]
        for pid in orphans:
            os.waitpid(pid, os.WNOHANG)
        below = children(os.getpid())
        if victim == "guest":
            below = [pid for launcher in below for pid in children(launcher)] + below[1:]
        if not below:
            return time.monotonic() - began_s
        await asyncio.sleep(0.002)
    return None


# ---- what is there


def children(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, thread.read_text().split())
        except OSError:
            continue  # it ended while we looked
    return found


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def describe(pids: list[int]) -> list[str]:
    return [f"{pid} {Path(f'/proc/{pid}/status').read_text().split()[1]} {children(pid)}" for pid in pids]


def orphaned_groups() -> list[str]:
    """Control groups named after a launcher that is gone."""
    named = re.compile(r"namespace-((\d+)-\d+)-[0-9a-f]{12}")
    found = [Path(place, name) for place, below, _ in os.walk("/sys/fs/cgroup") for name in below]
    return [str(path) for path in found if (name := named.fullmatch(path.name)) and owner_of(int(name[2])) != name[1]]


async def prepare() -> Spec:
    """The image in the cache, and every limit that can be had: then control groups are there to be left."""
    await resolve("host")
    substrate = make("namespace")
    try:
        enforced = (await substrate.probe()).limits
    finally:
        await substrate.close()
    wanted = {"disk_bytes": 1 << 26, "memory_bytes": 1 << 28, "pids": 100, "cpus": 2.0}
    return Spec(limits=Limits(**{name: value for name, value in wanted.items() if name in enforced}))  # pyright: ignore[reportArgumentType]


async def collected() -> None:
    substrate = make("namespace")
    try:
        await substrate.collect()
    finally:
        await substrate.close()


def main(victim: str, points: int, seed: int, address: str = "namespace") -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    report, chance = Report(), random.Random(seed)  # noqa: S311 - the same moments each time
    spec = asyncio.run(prepare())
    if victim == "client":
        kill_clients(points, chance, report, spec, address)
    else:
        asyncio.run(kill_others(victim, points, chance, report, spec))
    before = len(orphaned_groups())
    asyncio.run(collected())
    sys.stdout.write(json.dumps({**vars(report), "groups_before_gc": before, "groups_left": orphaned_groups()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
