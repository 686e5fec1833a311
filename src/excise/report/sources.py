"""Which results a report is made from: a run of rollouts, a run of single operations, or one of each of the same host."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.meter.packed import HEADER
from excise.meter.results import load_latencies, load_pools
from excise.report.bundle import Latencies
from excise.report.pool_story import Pools
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


def read_pools(paths: Sequence[Path]) -> list[Pools] | None:
    """Runs of pools of one host, each of another plan; None where the first is something else."""
    if not _is_pool(paths[0]):
        return None
    found: list[Pools] = []
    for path in paths:
        if not _is_pool(path):
            raise SpecError(f"{path} is no run of pools, and {paths[0]} is: report them one by one")
        header, trials = load_pools(path)
        if not any(not trial.warmup for trial in trials):
            raise SpecError(f"{path} has no measured block yet: let `excise measure` finish one")
        for before in found:
            if before.header.plan.name == header.plan.name:
                raise SpecError(
                    f"{path} is a second run of {header.plan.name or 'claims'}: runs are never pooled, report each alone"
                )
            if before.header.provenance.host != header.provenance.host:
                raise SpecError(f"{path} is of another host than {paths[0]}, whose times are never put side by side")
        found.append(Pools(header=header, trials=trials))
    return found


def _is_pool(path: Path) -> bool:
    return _kind(path) == "pool"


def is_latency(path: Path) -> bool:
    return _kind(path) == "latency"


def _kind(path: Path) -> str:
    """By the header's own word; what cannot be read is for the readers to refuse."""
    try:
        return msgspec.json.decode((path / HEADER).read_bytes(), type=_Kind).kind
    except (OSError, msgspec.DecodeError):
        return ""
