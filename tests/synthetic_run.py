"""Runs made of lines: every cell has a fixed part and a part for each action, and blocks that are slow for all at once."""

import random
from pathlib import Path

from excise.meter.records import Cell, Skipped
from excise.meter.results import Results
from excise.stats.run import Run
from made_results import ORIGIN, made_header, made_trial

__all__ = ["ACTIONS", "ORIGIN", "cell", "make_run", "make_trial"]
ACTIONS = 4


def make_trial(cell, block, start_ms, dispatch_ms, *, noise=1.0, work_ms=2.0, **more):
    """create, ACTIONS x (think, action), cleanup; a tenth of what is fixed is cleanup."""
    pieces: list[tuple[str, float, float | None, str]] = [("create", start_ms * 0.9, None, "")]
    for _ in range(ACTIONS):
        if cell.think_s:
            pieces.append(("think", cell.think_s * 1e3 / noise, None, ""))
        pieces.append(("action", dispatch_ms + work_ms, work_ms, ""))
    pieces.append(("cleanup", start_ms * 0.1, None, ""))
    return made_trial(cell, block, pieces, noise=noise, **{"written_bytes": 1000} | more)


def make_run(lines, blocks=20, *, spread=0.05, reference: str | None = "chroot", extra=(), skipped=(), seed=7):
    """`lines`: cell -> (start_ms, dispatch_ms). The first block warms up."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    trials = []
    for block in range(blocks + 1):
        busy = chance.lognormvariate(0, 0.3)
        for cell, (start_ms, dispatch_ms) in lines.items():
            for lane in range(cell.concurrency):
                noise = busy * chance.lognormvariate(0, spread)
                trials.append(make_trial(cell, block, start_ms, dispatch_ms, noise=noise, lane=lane))
    header = made_header(lines, reference=reference, skipped=tuple(Skipped(*one) for one in skipped))
    return Run(Results(header=header, trials=(*trials, *extra), path=Path("results/x")))


def cell(address, workload="t0", **factors):
    return Cell(address=address, workload=workload, **factors)
