"""A results directory: run.json, then trials.jsonl that only ever grows, a line a trial, flushed after each.

A bundle that is given away holds trials.jsonl.gz instead, or parts of it: see packed.py.
"""

import fcntl
import gzip
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from excise.errors import SpecError
from excise.meter.latency_records import LATENCY_SCHEMA, LatencyHeader, LatencyTrial
from excise.meter.packed import HEADER, TRIALS, packed_files
from excise.meter.pool_records import POOL_SCHEMA, PoolHeader, PoolTrial
from excise.meter.records import READABLE, Cell, Header, Trial

LOG = "measure.log"
"""What a run in the background says; it is there before the run is."""

_CHUNK_BYTES = 1 << 16

T = TypeVar("T")
R = TypeVar("R", Trial, LatencyTrial, PoolTrial)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one host. Absolute times of two hosts are never pooled: there is no way to add another directory."""

    header: Header
    trials: tuple[Trial, ...]
    path: Path

    def whole_blocks(self) -> tuple[int, ...]:
        """Blocks in which every cell had its trials, failed or not; a run that was cut off leaves one that is not whole."""
        return whole_blocks(self.header.plan.cells, self.trials)


def whole_blocks(cells: Iterable[Cell], trials: Iterable[Trial]) -> tuple[int, ...]:
    """The blocks that hold every lane of every cell; what was run once more, or as a control, counts for nothing here."""
    wanted = {(cell, lane) for cell in cells for lane in range(cell.concurrency)}
    seen: dict[int, set[tuple[Cell, int]]] = {}
    for trial in trials:
        if not trial.rerun and not trial.control:
            seen.setdefault(trial.block, set()).add((trial.cell, trial.lane))
    return tuple(sorted(block for block, found in seen.items() if wanted <= found))


def new_id() -> str:
    """Time, so that directories sort, and a few random digits, so that two runs of one second differ."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(3)


def default_path(run_id: str) -> Path:
    return Path("results") / run_id


def refuse_used(path: Path) -> None:
    """A SpecError if something is at `path` already, unless it is an empty directory."""
    if path.exists() and (not path.is_dir() or any(entry.name != LOG for entry in path.iterdir())):
        raise SpecError(f"{path} is in use already: name another directory with --out, results are never overwritten")


class Writer:
    """Opens a results directory and adds to it. The directory must be new or empty, or `go_on` with this very run."""

    def __init__(self, path: Path, header: Header | LatencyHeader | PoolHeader, *, go_on: bool = False) -> None:
        self._path = path
        self._header = header
        self._go_on = go_on
        self._descriptor = -1

    def __enter__(self) -> Self:
        with _plain_errors(self._path):
            if not self._go_on:
                self._begin()
            self._descriptor = os.open(self._path / TRIALS, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.__exit__()
            raise SpecError(f"{self._path} is being written by another excise: wait for it, or end that one first") from None
        if self._go_on:
            _drop_cut_line(self._descriptor)
        return self

    def _begin(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        refuse_used(self._path)
        whole = msgspec.json.format(msgspec.json.encode(self._header), indent=2) + b"\n"
        part = self._path / f".{HEADER}"
        part.write_bytes(whole)
        part.rename(self._path / HEADER)

    def add(self, trial: Trial | LatencyTrial | PoolTrial) -> None:
        """One write a line: what a crash can leave is a cut last line, never two lines mixed."""
        line = memoryview(msgspec.json.encode(trial) + b"\n")
        with _plain_errors(self._path):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _drop_cut_line(descriptor: int) -> None:
    """End the file after its last whole line: what follows was cut off while it was written."""
    size = os.fstat(descriptor).st_size
    end = size
    while end:
        begin = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            os.ftruncate(descriptor, begin + found + 1)
            return
        end = begin
    os.ftruncate(descriptor, 0)


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
    header, trials = scan(path)
    return Results(header=header, trials=tuple(trials), path=path)


def scan(path: Path) -> tuple[Header, Iterator[Trial]]:
    """The same a trial at a time: a large run's spans do not fit into memory together."""
    header = _header(path, Header, READABLE)
    return header, _trials(path, Trial, header.id)


def load_latencies(path: Path) -> tuple[LatencyHeader, tuple[LatencyTrial, ...]]:
    """The same for a latency run."""
    header = _header(path, LatencyHeader, (LATENCY_SCHEMA,))
    return header, tuple(_trials(path, LatencyTrial, header.id))


def load_pools(path: Path) -> tuple[PoolHeader, tuple[PoolTrial, ...]]:
    """The same for a run of pools."""
    header = _header(path, PoolHeader, (POOL_SCHEMA,))
    return header, tuple(_trials(path, PoolTrial, header.id))


def kind_of(path: Path) -> str:
    """`rollout`, `latency` or `pool`."""
    return _decoded(path / HEADER, _head(path), _Versioned).kind


def _head(path: Path) -> bytes:
    try:
        return (path / HEADER).read_bytes()
    except OSError as error:
        raise SpecError(f"{path} is not a results directory: {error.strerror}, {error.filename}") from None


def _header(path: Path, kind: type[T], readable: tuple[int, ...]) -> T:
    head = _head(path)
    found = _decoded(path / HEADER, head, _Versioned)
    if found.schema not in readable or found.kind != _KINDS.get(kind, "rollout"):
        known = " and ".join(map(str, readable))
        raise SpecError(
            f"{path} has {found.kind} results of schema {found.schema}, this reads {known}; use the excise that wrote it"
        )
    return _decoded(path / HEADER, head, kind)


def _trials(path: Path, kind: type[R], run_id: str) -> Iterator[R]:
    files = [] if (path / TRIALS).exists() else packed_files(path)
    for file in files or [path / TRIALS]:
        try:
            raw = file.open("rb")
        except OSError as error:
            raise SpecError(f"{path} is not a results directory: {error.strerror}, {error.filename}") from None
        with raw:
            if files:
                with gzip.open(raw) as unpacked:
                    yield from _lines(file, unpacked, kind, run_id)
            else:
                yield from _lines(file, raw, kind, run_id)


def _lines(file: Path, lines: Iterable[bytes], kind: type[R], run_id: str) -> Iterator[R]:
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # It was cut off while it was written.
            trial = decoder.decode(line)
            if trial.run != run_id:
                raise SpecError(f"{file} line {number} is of run {trial.run}, not {run_id}: runs are never pooled")
            yield trial
    except msgspec.DecodeError as error:
        raise SpecError(f"{file} line {number} is not a trial: {error}") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise SpecError(f"{file} is damaged: {error}; fetch it again") from None


_KINDS: dict[type, str] = {LatencyHeader: "latency", PoolHeader: "pool"}


class _Versioned(msgspec.Struct):
    schema: int
    kind: str = "rollout"


def _decoded(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is not a run's header: {error}") from None
