"""Arrivals as they were once: a file of lines, or the results of a run whose rollouts arrived at a rate."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.loading.arrivals import Arrival
from excise.loading.specs import Wanted, as_spec, json_lines
from excise.meter.results import scan

_LOOKS = '{"at_s": 0.5, "spec": "NAME", "hold_s": 2}'


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at_s: float
    spec: Any
    hold_s: float | None = None
    owner: str = ""


def replay(path: Path, wanted: Sequence[Wanted], *, hold_s: float) -> tuple[Arrival, ...]:
    """The arrivals of a file, or of a results directory, in the order of their times."""
    found = _of_results(path, wanted) if path.is_dir() else _of_lines(path, wanted, hold_s)
    if not found:
        raise SpecError(f"{path} has no arrival: a line looks like {_LOOKS}")
    return tuple(sorted(found, key=lambda one: one.at_s))


def _of_lines(path: Path, wanted: Sequence[Wanted], hold_s: float) -> list[Arrival]:
    named = {one.name: one for one in wanted}
    return [_arrival(row, f"{path} line {number}", named, hold_s) for number, row in json_lines(path)]


def _arrival(row: object, where: str, named: dict[str, Wanted], hold_s: float) -> Arrival:
    try:
        line = msgspec.convert(row, _Line)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where} is not an arrival: {error}; one looks like {_LOOKS}") from None
    held_s = hold_s if line.hold_s is None else line.hold_s
    for value, called in ((line.at_s, "at_s"), (held_s, "hold_s")):
        if not 0 <= value < math.inf:
            raise SpecError(f"{where}: {called}={value:g}, and it is a number of seconds from 0")
    if not isinstance(line.spec, str):
        return Arrival(at_s=line.at_s, name="-", spec=as_spec(line.spec, where), hold_s=held_s, owner=line.owner)
    one = named.get(line.spec)
    if one is None:
        raise SpecError(
            f"{where}: no spec is called {line.spec!r}; there are: {', '.join(named)}; --specs names a file of yours"
        )
    return Arrival(at_s=line.at_s, name=one.name, spec=one.spec, hold_s=held_s, owner=line.owner or one.owner)


def _of_results(path: Path, wanted: Sequence[Wanted]) -> list[Arrival]:
    """The first measured block's rollouts of one cell: when they were to begin, and how long they took.

    A result names its workload and not a spec, so that the specs are taken in turn.
    """
    _, trials = scan(path)
    own = [trial for trial in trials if not trial.warmup and not trial.control and not trial.rerun]
    if not own:
        return []
    first = max(own, key=lambda trial: (trial.cell.arrivals_per_s > 0, trial.cell.concurrency, -trial.block))
    found: list[Arrival] = []
    for trial in own:
        if (trial.block, trial.cell) == (first.block, first.cell):
            one = wanted[len(found) % len(wanted)]
            held_s = trial.wall_ns / 1e9
            found.append(Arrival(at_s=trial.intended_ns / 1e9, name=one.name, spec=one.spec, hold_s=held_s, owner=one.owner))
    return found
