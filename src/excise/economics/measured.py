"""What was measured on a host: runs of rollouts and of claims, what idle sandboxes weigh, what neighbours saw."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from excise.economics.weighed import Observed, Weighed, read_observed, read_weighed
from excise.errors import SpecError
from excise.meter.packed import HEADER
from excise.meter.pool_records import PoolHeader, PoolTrial
from excise.meter.records import Declared, Provenance, Skipped
from excise.meter.results import kind_of, load_pools, scan
from excise.stats.rows import Row
from excise.stats.run import Run

REMEDY = "`excise measure --plan isolation` measures what this machine has (`--dry-run` says how long it takes)"
_NEWEST = 24
"""So many of the newest runs are looked into where nobody said which."""


@dataclass(frozen=True)
class Claims:
    """A run of pools."""

    header: PoolHeader
    trials: tuple[PoolTrial, ...]


@dataclass(frozen=True)
class Measured:
    """Everything that is known of one host. The newest runs first; times of two hosts are never put side by side."""

    runs: tuple[Run, ...] = ()
    claims: tuple[Claims, ...] = ()
    weighed: Mapping[str, Weighed] = field(default_factory=dict[str, Weighed])
    """By address."""
    observed: Mapping[str, Observed] = field(default_factory=dict[str, Observed])
    """By address."""
    declared: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    """By address: what runs recorded, and what was asked now where they did not."""
    foreign: bool = False
    """Of another host than this."""

    @property
    def provenance(self) -> Provenance:
        return self.runs[0].header.provenance

    def rows(self) -> list[tuple[Run, Row]]:
        """Rows with a successful trial, those of newer runs first."""
        return [(run, row) for run in self.runs for row in run.rows if row.blocks is not None]

    @property
    def addresses(self) -> list[str]:
        return list(dict.fromkeys(row.address for _, row in self.rows()))

    @property
    def skipped(self) -> list[Skipped]:
        """Addresses that were asked for and could not run; who ran in any run is not among them."""
        there = set(self.addresses)
        every = (one for run in self.runs for one in run.skipped if one.cell is None and one.address not in there)
        return list({one.address: one for one in every}.values())

    def undeclared(self) -> list[str]:
        """Addresses that no run says the isolation of."""
        return [address for address in self.addresses if address not in self.declared]


def read(paths: Sequence[Path], host: str | None = None) -> Measured:
    """Results directories, directories of them, files of bench/density.py and bench/observe.py. A SpecError if there is none.

    `host`: the hash of this one; results of another are read, and said to be.
    """
    runs: list[Run] = []
    claims: list[Claims] = []
    weighed: dict[str, Weighed] = {}
    observed: dict[str, Observed] = {}
    for path in [found for given in paths for found in _within(given)]:
        if path.is_file():
            weighed |= read_weighed(path)
            observed |= read_observed(path)
        elif (kind := kind_of(path)) == "rollout":
            runs.append(Run.read(path))
        elif kind == "pool":
            claims.append(Claims(*load_pools(path)))
    kept = sorted((run for run in runs if run.blocks), key=lambda run: run.header.started, reverse=True)
    if not kept:
        where = ", ".join(map(str, paths)) or "nowhere"
        raise SpecError(f"no whole measured block of rollouts is in {where}: {REMEDY}")
    _of_one_host([*(run.header.provenance for run in kept), *(one.header.provenance for one in claims)])
    return Measured(
        runs=tuple(kept),
        claims=tuple(sorted(claims, key=lambda one: one.header.started, reverse=True)),
        weighed=weighed,
        observed=observed,
        declared=_declared(kept, claims),
        foreign=host is not None and kept[0].header.provenance.host != host,
    )


def newest(directory: Path, host: str) -> Measured:
    """The newest results of this host below `directory`, which is where `excise measure` writes them."""
    here: list[Path] = []
    for path in sorted(directory.iterdir() if directory.is_dir() else (), reverse=True):
        if path.is_file() and path.suffix == ".json":
            here.append(path)
        elif (path / HEADER).is_file() and len(here) < _NEWEST:
            try:
                if _host(path) == host:
                    here.append(path)
            except SpecError:
                continue  # of another version, or damaged: somebody's, but nothing to advise from
    if not any(path.is_dir() for path in here):
        raise SpecError(f"there are no results of this host in {directory}/: {REMEDY}; or name some with --results")
    return read(here, host)


def _host(path: Path) -> str:
    kind = kind_of(path)
    if kind == "pool":
        return load_pools(path)[0].provenance.host
    return scan(path)[0].provenance.host if kind == "rollout" else ""


def _within(path: Path) -> list[Path]:
    if path.is_file() or (path / HEADER).is_file():
        return [path]
    if not path.is_dir():
        raise SpecError(f"{path} is neither a results directory nor a file of bench/density.py: {REMEDY}")
    below = (path, *(one for one in path.rglob("*") if one.is_dir()))
    return sorted({one for one in below if (one / HEADER).is_file()} | {one for one in path.rglob("*.json") if _loose(one)})


def _loose(path: Path) -> bool:
    return path.name != HEADER and not (path.parent / HEADER).is_file()


def _of_one_host(origins: Iterable[Provenance]) -> None:
    hosts = list(dict.fromkeys(one.host for one in origins))
    if len(hosts) > 1:
        raise SpecError(f"the results are of {len(hosts)} hosts ({', '.join(hosts)}), whose times are never put side by side")


def _declared(runs: Sequence[Run], claims: Sequence[Claims]) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    for one in (*(run.header for run in runs), *(each.header for each in claims)):
        for address, said in one.provenance.declared.items():
            found.setdefault(address, said)
    return found
