"""What a latency run holds: the same two files as any run, with samples of one operation in place of whole rollouts."""

from typing import Literal

import msgspec

from excise.meter.records import Provenance, Skipped
from excise.spec import Limits

LATENCY_SCHEMA = 1

Operation = Literal["create", "exec", "session", "reset", "reset-answer", "snapshot", "snapshot-live", "fork-8", "fork-64"]
"""create: from the call to the first result. exec: an Exec in a live sandbox. session: a builtin in a live session.

The others in a sandbox in which a hundred files were changed. reset: with a session and a process alive, to its return;
reset-answer: to the first result. snapshot: with nothing alive; snapshot-live: with both. fork: from the call until each child
has answered.
"""


class LatencyCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One operation of one substrate: a row of the table."""

    address: str
    operation: Operation
    tight: bool = False
    """Samples in a row, and then floors in a row; otherwise a floor goes before each sample."""
    samples: int = 20
    """In each block."""


class LatencyPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run does. Any run can be repeated from this record."""

    cells: tuple[LatencyCell, ...]
    image: str = "host"
    limits: Limits = Limits()
    """Of every sandbox, as far as its substrate enforces them."""
    seed: int = 0
    blocks: int = 60
    warmup_blocks: int = 2


class LatencyTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cell in one block: every sample, beside its floor."""

    run: str
    block: int
    position: int
    cell: LatencyCell
    warmup: bool = False
    took_ns: tuple[int, ...] = ()
    floor_ns: tuple[int, ...] = ()
    close_ns: tuple[int, ...] = ()
    """Of `create` and forks: what closing took, which is no part of the sample."""
    failure: str | None = None


class LatencyHeader(msgspec.Struct, frozen=True, kw_only=True):
    """run.json of a latency run."""

    schema: int = LATENCY_SCHEMA
    kind: Literal["latency"] = "latency"
    id: str
    started: str
    plan: LatencyPlan
    privileged: bool
    """Whether root measured."""
    provenance: Provenance
    skipped: tuple[Skipped, ...] = ()
