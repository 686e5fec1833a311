"""A run made by hand: every number of its table can be worked out on paper."""

from pathlib import Path

import pytest

from excise.meter.records import NULL, Cell, Harness, Quiet, Skipped
from excise.meter.results import Results
from excise.stats.run import Run
from made_results import MS, made_header, made_trial

ADDRESSES = ("chroot", "docker", "docker?host=tcp://10.0.0.17:2375")


def trial(block, address, durations_ms, failure=None):
    pieces = [(name, ms, guest_ms, "") for name, ms, guest_ms in durations_ms]
    cell = Cell(address=address, workload="t0?actions=1")
    return made_trial(cell, block, pieces, quiet=Quiet(window_ns=20 * MS, busy_s=0.01), failure=failure)


def block(number):
    """The host is slower in odd blocks, for everybody alike. Every fourth trial of the last row fails."""
    busy = 1.5 if number % 2 else 1.0
    bare = [("create", 4, None), ("ready", 1, None), ("action", 3, 2), (NULL, 3, 2), ("cleanup", 2, None)]
    engine = [("create", 200, None), ("ready", 50, None), ("action", 55, None), (NULL, 52, None), ("cleanup", 60, None)]
    failure = "SandboxLost: the daemon closed | the connection" if number % 4 == 0 else None
    for address, spans, reason in zip(ADDRESSES, (bare, engine, engine), (None, None, failure), strict=True):
        yield trial(number, address, [(name, ms * busy, guest and guest * busy) for name, ms, guest in spans], reason)


def make_run(blocks, path=Path("results/x"), *, reference="chroot"):
    header = made_header(
        (Cell(address=address, workload="t0?actions=1") for address in ADDRESSES),
        reference=reference,
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
