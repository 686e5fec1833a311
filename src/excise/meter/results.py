"""A results directory: run.json, then trials.jsonl that only ever grows, a line a trial, flushed after each."""

import os
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from excise.errors import SpecError
from excise.meter.latency_records import LATENCY_SCHEMA, LatencyHeader, LatencyTrial
from excise.meter.records import SCHEMA, Header, Trial

HEADER = "run.json"
TRIALS = "trials.jsonl"

T = TypeVar("T")
R = TypeVar("R", Trial, LatencyTrial)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one host. Absolute times of two hosts are never pooled: there is no way to add another directory."""

    header: Header
    trials: tuple[Trial, ...]
    path: Path

    def whole_blocks(self) -> tuple[int, ...]:
        """Blocks in which every cell had its trial, failed or not; a run that was cut off leaves one that is not whole."""
        seen: dict[int, set[str]] = {}
        for trial in self.trials:
            seen.setdefault(trial.block, set()).add(_key(trial))
        cells = len(self.header.plan.cells)
        return tuple(sorted(block for block, keys in seen.items() if len(keys) == cells))


def _key(trial: Trial) -> str:
    return f"{trial.cell.address} {trial.cell.workload}"


def new_id() -> str:
    """Time, so that directories sort, and a few random digits, so that two runs of one second differ."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(3)


def default_path(run_id: str) -> Path:
    return Path("results") / run_id


def refuse_used(path: Path) -> None:
    """A SpecError if something is at `path` already, unless it is an empty directory."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SpecError(f"{path} is in use already: name another directory with --out, results are never overwritten")


class Writer:
    """Opens a results directory and adds to it. The directory must be new or empty."""

    def __init__(self, path: Path, header: Header | LatencyHeader) -> None:
        self._path = path
        self._header = header
        self._descriptor = -1

    def __enter__(self) -> Self:
        with _plain_errors(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
            refuse_used(self._path)
            whole = msgspec.json.format(msgspec.json.encode(self._header), indent=2) + b"\n"
            part = self._path / f".{HEADER}"
            part.write_bytes(whole)
            part.rename(self._path / HEADER)
            self._descriptor = os.open(self._path / TRIALS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self

    def add(self, trial: Trial | LatencyTrial) -> None:
        """One write a line: what a crash can leave is a cut last line, never two lines mixed."""
        line = memoryview(msgspec.json.encode(trial) + b"\n")
        with _plain_errors(self._path):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _plain_errors:  # noqa: N801 - reads as a phrase where it is used
    """A full disk or a read-only directory as one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise SpecError(
                f"results cannot be written to {self._path}: {error.strerror}; name another directory with --out"
            ) from error


def load(path: Path) -> Results:
    """Read a results directory; a half-written last line is left out, any other damage is named."""
    header = _header(path, Header, SCHEMA)
    return Results(header=header, trials=_trials(path, Trial, header.id), path=path)


def load_latencies(path: Path) -> tuple[LatencyHeader, tuple[LatencyTrial, ...]]:
    """The same for a latency run."""
    header = _header(path, LatencyHeader, LATENCY_SCHEMA)
    return header, _trials(path, LatencyTrial, header.id)


def _header(path: Path, kind: type[T], schema: int) -> T:
    try:
        head = (path / HEADER).read_bytes()
    except OSError as error:
        raise SpecError(f"{path} is not a results directory: {error.strerror}, {error.filename}") from None
    found = _schema(path, head)
    if found != schema:
        raise SpecError(f"{path} has results of schema {found}, this version reads {schema}; use the excise that wrote it")
    return _decoded(path / HEADER, head, kind)


def _trials(path: Path, kind: type[R], run_id: str) -> tuple[R, ...]:
    try:
        lines = (path / TRIALS).read_bytes().split(b"\n")
    except OSError as error:
        raise SpecError(f"{path} is not a results directory: {error.strerror}, {error.filename}") from None
    lines.pop()  # What follows the last newline: nothing, or a line that was cut off.
    decoder = msgspec.json.Decoder(kind)
    trials: list[R] = []
    for number, line in enumerate(lines, 1):
        try:
            trial = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise SpecError(f"{path / TRIALS} line {number} is not a trial: {error}") from None
        if trial.run != run_id:
            raise SpecError(f"{path / TRIALS} line {number} is of run {trial.run}, not {run_id}: runs are never pooled")
        trials.append(trial)
    return tuple(trials)


class _Versioned(msgspec.Struct):
    schema: int


def _schema(path: Path, head: bytes) -> int:
    return _decoded(path / HEADER, head, _Versioned).schema


def _decoded(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is not a run's header: {error}") from None
