"""Results that were made up, through the writer that real ones go through: known costs, a little seeded noise."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from excise.meter.records import NULL, RESET, Cell, Harness, Header, Plan, Provenance, Quiet, Skipped, Trial
from excise.meter.results import Writer
from excise.trace import Span

MS = 10**6
ORIGIN = Provenance(
    host="0123456789ab",
    cpu="A CPU",
    cores=2,
    memory_bytes=8 << 30,
    kernel="Linux 6",
    machine="x86_64",
    cgroup="v2",
    filesystem="ext4",
    mitigations={"meltdown": "Not affected", "spectre_v1": "Mitigation: barriers"},
    excise="0.1.0",
    python="3.11",
    versions={"docker": {"docker": "20.10"}},
)
COSTS_MS = {
    # address: start, dispatch of an action, cleanup, whether a clock runs inside
    "chroot": (9.0, 2.0, 2.4, True),
    "bubblewrap": (15.0, 10.0, 3.0, False),
    "namespace": (4.0, 0.6, 1.5, True),
    "docker": (240.0, 50.0, 52.0, False),
    "docker+guest": (300.0, 0.9, 55.0, True),
}
WORK_MS = {"t0": 1.0, "t1": 12.0, "t2": 60.0}
RESET_MS = 12.0
SHELL_MS = {"exec": 0.0, "shell": 1.0, "login": 8.0, "session": -0.2}


def actions_of(workload: str) -> int:
    name, _, length = workload.partition("?actions=")
    return int(length) if length else {"t0": 10, "t1": 8, "t2": 12}[name]


Piece = tuple[str, float, float | None, str]
"""Of a rollout: a span's name, its milliseconds, those of them inside, its kind."""


def made_header(cells: Iterable[Cell], *, reference: str | None = "chroot", **more: Any) -> Header:
    """Of run `r`, unless `id` says otherwise."""
    image = more.pop("image", "host")
    known = {"id": "r", "started": "2026-01-01T00:00:00Z", "provenance": ORIGIN} | more
    return Header(plan=Plan(cells=tuple(cells), reference=reference, image=image), **known)


def made_trial(cell: Cell, block: int, pieces: Iterable[Piece], *, noise: float = 1.0, **more: Any) -> Trial:
    """The pieces one after the other, each `noise` times as long; block 0 warms up."""
    spans: list[Span] = []
    at = 0
    for name, ms, inside_ms, kind in pieces:
        inside_ns = None if inside_ms is None else round(inside_ms * noise * MS)
        spans.append(Span(name, "0badcafe", at, at + round(ms * noise * MS), kind, inside_ns, outcome="ok"))
        at = spans[-1].end_ns
    known = {
        "run": "r",
        "position": 0,
        "warmup": block == 0,
        "apart_ns": sum(span.duration_ns for span in spans if span.name == NULL),
        "cpu_s": 0.25,
        "quiet": Quiet(window_ns=20 * MS),
    }
    return Trial(block=block, cell=cell, wall_ns=at, spans=tuple(spans), **(known | more))


def trial(run: str, block: int, cell: Cell, chance: random.Random, **more: Any) -> Trial:
    noise = chance.lognormvariate(0, 0.1) * cell.concurrency**0.5
    length = actions_of(cell.workload)
    return made_trial(cell, block, pieces(cell, length), noise=noise, run=run, cpu_s=0.1, written_bytes=4096 * length, **more)


def pieces(cell: Cell, length: int) -> Iterator[Piece]:
    start, dispatch, cleanup, clock = COSTS_MS.get(cell.address, COSTS_MS["docker"])
    dispatch = max(0.1, dispatch + SHELL_MS[cell.shell])
    work = WORK_MS[cell.workload.partition("?")[0]]
    if cell.reset == "recreate":
        yield from (("create", start * 0.8, None, ""), ("ready", start * 0.2, None, ""))
    else:
        yield RESET, RESET_MS, None, ""
    for number in range(length):
        yield "action", dispatch + work, work if clock else None, ("exec", "shell", "write", "read")[number % 4]
        yield NULL, dispatch + 0.5, 0.5 if clock else None, "exec"
    if cell.reset == "recreate":
        yield "cleanup", cleanup, None, ""


def plain_cells(addresses: Iterable[str] = COSTS_MS, workloads: Iterable[str] = ("t0",)) -> tuple[Cell, ...]:
    return tuple(Cell(address=address, workload=workload) for workload in workloads for address in addresses)


def rich_cells() -> tuple[Cell, ...]:
    """Every figure has what it needs: tiers, lengths, shell modes, load, resets, states."""
    shells = tuple(Cell(address="docker", workload="t2", shell=shell) for shell in ("login", "session"))
    load = tuple(Cell(address=address, workload="t0", concurrency=4) for address in ("docker", "namespace"))
    others = (Cell(address="docker", workload="t2", reset="git"), Cell(address="docker", workload="t0", state="cold"))
    rates = tuple(Cell(address="docker", workload="t0", concurrency=4, arrivals_per_s=rate) for rate in (2.0, 8.0))
    plain = plain_cells(workloads=("t0", "t1", "t2", "t2?actions=50", "t2?actions=150"))
    return (*plain, *shells, *load, *others, *rates)


def write(
    path: Path,
    cells: tuple[Cell, ...],
    blocks: int = 8,
    *,
    failing: str = "",
    reason: str = "SandboxLost: the daemon closed the connection",
    skipped: tuple[Skipped, ...] = (),
    reference: str | None = "chroot",
    origin: Provenance = ORIGIN,
) -> Path:
    """A results directory; every third trial of the address `failing` fails."""
    harness = Harness(rollout_s=0.0001, action_s=0.00001)
    known = {"id": "20260101T000000Z-abcdef", "provenance": origin, "skipped": skipped, "harness": harness}
    header = made_header(cells, reference=reference, image="excise/base", **known)
    chance = random.Random(7)  # noqa: S311 - made up, and the same every time
    with Writer(path, header) as writer:
        for block in range(blocks + 1):
            for position, cell in enumerate(cells):
                failure = reason if cell.address == failing and block % 3 == 0 else None
                for lane in range(cell.concurrency):
                    writer.add(trial(header.id, block, cell, chance, position=position, lane=lane, failure=failure))
    return path
