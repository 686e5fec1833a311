"""Which results a report is made from: a run of rollouts, a run of single operations, or one of each of the same host."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.meter.packed import HEADER
from excise.meter.results import load_latencies
from excise.report.bundle import Latencies
from excise.stats.run import Run


class _Kind(msgspec.Struct):
    kind: str = "rollout"


def read(paths: Sequence[Path]) -> tuple[Run | None, Latencies | None]:
    """Whatever is wrong with one of them is a SpecError in one sentence."""
    run: Run | None = None
    latencies: Latencies | None = None
    for path in paths:
        if is_latency(path):
            if latencies is not None:
                raise SpecError(f"{path} is a second run of single operations: runs are never pooled, report each alone")
            header, trials = load_latencies(path)
            if not any(not trial.warmup for trial in trials):
                raise SpecError(f"{path} has no measured block yet: let `excise measure` finish one")
            latencies = Latencies(header=header, trials=trials)
        else:
            if run is not None:
                raise SpecError(f"{path} is a second run of rollouts: runs are never pooled; `excise compare` compares two")
            run = Run.read(path)
            if not run.blocks:
                raise SpecError(f"{path} has no whole measured block yet: let `excise measure` finish one")
    if run is not None and latencies is not None:
        first, second = run.header.provenance.host, latencies.header.provenance.host
        if first != second:
            raise SpecError(f"the results are of two hosts ({first}, {second}), whose times are never put side by side")
    return run, latencies


def is_latency(path: Path) -> bool:
    """By the header's own word; what cannot be read is for the readers to refuse."""
    try:
        return msgspec.json.decode((path / HEADER).read_bytes(), type=_Kind).kind == "latency"
    except (OSError, msgspec.DecodeError):
        return False
