"""What a results directory holds: one Header (run.json) and one Trial a line (trials.jsonl)."""

from collections.abc import Mapping

import msgspec

from excise.trace import Span

SCHEMA = 2
NULL = "null"
"""The span name of an interleaved null action; it belongs to the instrument, not to the rollout."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of factors: a row of the table. New factors are new fields with defaults."""

    address: str
    workload: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. Any run can be repeated from this record."""

    cells: tuple[Cell, ...]
    reference: str | None
    """Address of the cell that work is measured on; None if nothing here can be it."""
    image: str = "host"
    seed: int = 0
    blocks: int | None = None
    """Measured blocks; None: as many whole ones as the budget holds."""
    budget_s: float | None = None
    warmup_blocks: int = 1
    quiet_s: float = 0.02
    """How long the host is watched, with nothing of ours running, before each trial."""


class Skipped(msgspec.Struct, frozen=True):
    """An address that cannot run here, and what would change that."""

    address: str
    reason: str


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """The host just before a trial: pressure then is somebody else's doing."""

    window_ns: int
    pressure_ns: int | None = None
    """How much of the window some task waited for a CPU; None on a kernel without PSI."""
    pressure_avg10: float | None = None
    busy_s: float = 0.0
    """Busy CPU seconds of the whole host, in the kernel's ticks: only the sum over many windows says something."""
    steal_s: float = 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout of one cell. Span times count from the trial's start."""

    run: str
    block: int
    position: int
    """Place in the block's random order."""
    cell: Cell
    warmup: bool = False
    wall_ns: int
    apart_ns: int = 0
    """What of it was the instrument's: null actions, and reading the host's counters around them."""
    cpu_s: float
    """Busy CPU seconds of the whole host meanwhile, without what is apart: daemons and deletion too, and other people's."""
    steal_s: float = 0.0
    quiet: Quiet
    failure: str | None = None
    spans: tuple[Span, ...]


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers are from. It names no person and no path."""

    host: str
    """A hash that is the same for runs of one host."""
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    machine: str
    cgroup: str
    filesystem: str
    mitigations: Mapping[str, str]
    distribution: str = "unknown"
    """Of the host; with the image `host` it is the sandbox's too."""
    excise: str
    code: str = "unknown"
    """Digest of the source that measured."""
    python: str
    image_digest: str | None = None
    """Of the image's content; of `host`, of the tree generated beside the host's own /usr, which `distribution` names."""
    versions: Mapping[str, Mapping[str, str]] = {}
    """By address: what the substrate said of itself."""


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """What the instrument itself costs, measured on a substrate that does nothing."""

    rollout_s: float
    action_s: float


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: written before the first trial."""

    schema: int = SCHEMA
    id: str
    started: str
    plan: Plan
    provenance: Provenance
    skipped: tuple[Skipped, ...] = ()
    harness: Harness | None = None
