"""Runs made of lines: every cell has a fixed part and a part for each action, and blocks that are slow for all at once."""

import random
from pathlib import Path

from excise.meter.records import Cell, Header, Plan, Provenance, Quiet, Skipped, Trial
from excise.meter.results import Results
from excise.stats.run import Run
from excise.trace import Span

MS = 10**6
ACTIONS = 4
ORIGIN = Provenance(
    host="h",
    cpu="A CPU",
    cores=2,
    memory_bytes=1,
    kernel="Linux 6",
    machine="x86_64",
    cgroup="v2",
    filesystem="ext4",
    mitigations={},
    excise="0.1.0",
    python="3.11",
)


def make_trial(cell, block, start_ms, dispatch_ms, *, noise=1.0, work_ms=2.0, **more):
    """create, ACTIONS x (think, action), cleanup; a tenth of what is fixed is cleanup."""
    spans, at = [], 0

    def add(name, ms, guest_ms=None):
        nonlocal at
        took, inside = round(ms * MS * noise), None if guest_ms is None else round(guest_ms * MS * noise)
        spans.append(Span(name, "s", at, at + took, guest_ns=inside))
        at += took

    add("create", start_ms * 0.9)
    for _ in range(ACTIONS):
        if cell.think_s:
            add("think", cell.think_s * 1e3 / noise)
        add("action", dispatch_ms + work_ms, work_ms)
    add("cleanup", start_ms * 0.1)
    known = {"warmup": block == 0, "cpu_s": 0.25, "written_bytes": 1000, "quiet": Quiet(window_ns=20 * MS)} | more
    return Trial(run="r", block=block, position=0, cell=cell, wall_ns=at, spans=tuple(spans), **known)


def make_run(lines, blocks=20, *, spread=0.05, reference: str | None = "chroot", extra=(), skipped=()):
    """`lines`: cell -> (start_ms, dispatch_ms). The first block warms up."""
    chance = random.Random(7)  # noqa: S311 - a simulation
    trials = []
    for block in range(blocks + 1):
        busy = chance.lognormvariate(0, 0.3)
        for cell, (start_ms, dispatch_ms) in lines.items():
            for lane in range(cell.concurrency):
                noise = busy * chance.lognormvariate(0, spread)
                trials.append(make_trial(cell, block, start_ms, dispatch_ms, noise=noise, lane=lane))
    header = Header(
        id="r",
        started="2026-01-01T00:00:00Z",
        plan=Plan(cells=tuple(lines), reference=reference),
        provenance=ORIGIN,
        skipped=tuple(Skipped(*one) for one in skipped),
    )
    return Run(Results(header=header, trials=(*trials, *extra), path=Path("results/x")))


def cell(address, workload="t0", **factors):
    return Cell(address=address, workload=workload, **factors)
