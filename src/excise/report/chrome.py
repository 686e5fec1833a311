"""One block's trials as Chrome trace events: Perfetto and chrome://tracing open them."""

from collections.abc import Iterable, Iterator
from typing import Any

from excise.errors import SpecError
from excise.meter.records import Trial
from excise.trace import Span


def chosen(trials: Iterable[Trial], asked: str) -> list[Trial]:
    """The trials that `asked` names: BLOCK, or BLOCK:ADDRESS."""
    number, _, address = asked.partition(":")
    if not number.isdecimal():
        raise SpecError(f"{asked!r} names no trial: write a block's number, as 3, or one of its trials, as 3:docker")
    block = int(number)
    seen: set[int] = set()
    found: list[Trial] = []
    for trial in trials:
        seen.add(trial.block)
        if trial.block == block and address in ("", trial.cell.address):
            found.append(trial)
    if found:
        return found
    if block not in seen:
        known = f"there are {min(seen)} to {max(seen)}" if seen else "there is none"
        raise SpecError(f"block {block} has no trial: {known}")
    raise SpecError(f"block {block} has no trial of {address!r}: give an address as the table has it")


def events(trials: Iterable[Trial]) -> dict[str, Any]:
    """The JSON object format: a process for each trial, a thread for each kind of span, complete events in microseconds."""
    found: list[dict[str, Any]] = []
    for process, trial in enumerate(trials, 1):
        found += _of_trial(process, trial)
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _of_trial(process: int, trial: Trial) -> Iterator[dict[str, Any]]:
    cell = trial.cell
    factors = "".join(f", {name} {value}" for name, value in cell.factors().items())
    lane = f", lane {trial.lane}" if cell.concurrency > 1 else ""
    title = f"{cell.address} {cell.workload}{factors}{lane}, block {trial.block}" + (", again" if trial.rerun else "")
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": trial.position}}
    threads: dict[str, int] = {}
    for number, span in enumerate(trial.spans):
        kind = span.name if span.name in ("null", "identity") else "rollout"
        if kind not in threads:
            threads[kind] = len(threads) + 1
            named = "the instrument" if kind != "rollout" else "the rollout"
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": threads[kind], "args": {"name": named}}
        yield _complete(process, threads[kind], number, span)
    if trial.failure is not None:
        at = max((span.end_ns for span in trial.spans), default=0) / 1e3
        yield {"ph": "i", "s": "p", "name": f"failed: {trial.failure}", "pid": process, "tid": 1, "ts": at}


def _complete(process: int, thread: int, number: int, span: Span) -> dict[str, Any]:
    details: dict[str, Any] = {"span": number, "outcome": span.outcome}
    if span.guest_ns is not None:
        details["inside_us"] = span.guest_ns / 1e3
    if span.cpu_ns is not None:
        details["cpu_us"] = span.cpu_ns / 1e3
    return {
        "ph": "X",
        "name": f"{span.name} {span.kind}".strip(),
        "cat": span.name,
        "pid": process,
        "tid": thread,
        "ts": span.start_ns / 1e3,
        "dur": max(0, span.end_ns - span.start_ns) / 1e3,
        "args": details,
    }
