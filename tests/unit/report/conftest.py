"""A run made by hand: every number of its table can be worked out on paper."""

from pathlib import Path

import pytest

from excise.meter.records import NULL, Cell, Harness, Header, Plan, Provenance, Quiet, Skipped, Trial
from excise.meter.results import Results
from excise.stats.run import Run
from excise.trace import Span

MS = 10**6
ADDRESSES = ("chroot", "docker", "docker?host=tcp://10.0.0.17:2375")
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


def trial(block, address, durations_ms, failure=None):
    at, spans = 0, []
    for name, ms, guest_ms in durations_ms:
        guest_ns = None if guest_ms is None else round(guest_ms * MS)
        spans.append(Span(name, "s", at, at + round(ms * MS), guest_ns=guest_ns))
        at += round(ms * MS)
    return Trial(
        run="r",
        block=block,
        position=0,
        cell=Cell(address=address, workload="t0?actions=1"),
        warmup=block == 0,
        wall_ns=at,
        apart_ns=sum(span.duration_ns for span in spans if span.name == NULL),
        cpu_s=0.25,
        quiet=Quiet(window_ns=20 * MS, busy_s=0.01),
        failure=failure,
        spans=tuple(spans),
    )


def block(number):
    """The host is slower in odd blocks, for everybody alike. Every fourth trial of the last row fails."""
    busy = 1.5 if number % 2 else 1.0
    bare = [("create", 4, None), ("ready", 1, None), ("action", 3, 2), (NULL, 3, 2), ("cleanup", 2, None)]
    engine = [("create", 200, None), ("ready", 50, None), ("action", 55, None), (NULL, 52, None), ("cleanup", 60, None)]
    failure = "SandboxLost: the daemon closed | the connection" if number % 4 == 0 else None
    for address, spans, reason in zip(ADDRESSES, (bare, engine, engine), (None, None, failure), strict=True):
        yield trial(number, address, [(name, ms * busy, guest and guest * busy) for name, ms, guest in spans], reason)


def make_run(blocks, path=Path("results/x"), *, reference="chroot"):
    header = Header(
        id="r",
        started="2026-01-01T00:00:00Z",
        plan=Plan(cells=tuple(Cell(address=a, workload="t0?actions=1") for a in ADDRESSES), reference=reference),
        provenance=ORIGIN,
        skipped=(Skipped("runc", "runc is not installed; apt-get install runc"),),
        harness=Harness(rollout_s=0.0001, action_s=0.00001),
    )
    trials = tuple(one for number in range(blocks + 1) for one in block(number))
    return Run(Results(header=header, trials=trials, path=path))


@pytest.fixture
def run():
    return make_run(60)


@pytest.fixture
def made():
    return make_run
