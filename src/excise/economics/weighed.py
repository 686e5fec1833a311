"""Two measurements that are no runs: what an idle sandbox weighs, and what a neighbour sees (bench/density.py, observe.py)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from excise.errors import SpecError

T = TypeVar("T")


class Weighing(msgspec.Struct, frozen=True, kw_only=True):
    """So many sandboxes alive at once, and what each weighed on average."""

    sandboxes: int
    available_kib_each: float
    """By MemAvailable."""
    pss_kib_each: float = 0.0


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """One address."""

    address: str
    runs: tuple[Weighing, ...]
    slope_kib: float | None = None
    """What one more weighs: a line through the counts, by MemAvailable; what a first one brings along is not in it."""
    host: str = ""
    memory_bytes: int = 0
    file: str = ""

    @property
    def each_bytes(self) -> float | None:
        """The slope where there were several counts; else the average of the largest. None: it is not told from nothing."""
        largest = max(self.runs, key=lambda run: run.sandboxes)
        kib = largest.available_kib_each if self.slope_kib is None else self.slope_kib
        return kib * 1024 if kib > 0 else None

    @property
    def most(self) -> int:
        """So many were alive at once, and each answered."""
        return max(run.sandboxes for run in self.runs)


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox saw of the one beside it, and of the host."""

    address: str
    seen: Mapping[str, bool | None]
    """By what was looked for; None: it could not be tried there."""
    host: str = ""
    file: str = ""


class _File(msgspec.Struct):
    kind: str = ""
    address: str = ""
    runs: list[Weighing] | None = None
    addresses: list[msgspec.Raw] = []
    host: str = ""
    memory_bytes: int = 0


def read_weighed(path: Path) -> dict[str, Weighed]:
    """By address; nothing where the file is of another kind."""
    found = _read(path)
    if found is None or found.kind not in ("", "density"):
        return {}
    if found.runs:
        return {found.address: Weighed(address=found.address, runs=tuple(found.runs), file=path.name)}
    every = (_decoded(raw, Weighed, path) for raw in found.addresses) if found.kind else ()
    return {one.address: _with(one, found, path) for one in every}


def read_observed(path: Path) -> dict[str, Observed]:
    """By address; nothing where the file is of another kind."""
    found = _read(path)
    if found is None or found.kind != "observe":
        return {}
    every = (_decoded(raw, Observed, path) for raw in found.addresses)
    return {one.address: msgspec.structs.replace(one, host=found.host, file=path.name) for one in every}


def _with(one: Weighed, found: _File, path: Path) -> Weighed:
    return msgspec.structs.replace(one, host=found.host, memory_bytes=found.memory_bytes, file=path.name)


def _read(path: Path) -> _File | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except msgspec.DecodeError:
        return None  # some other JSON that lies beside results
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(raw: msgspec.Raw, kind: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is damaged: {error}; write it again") from None
