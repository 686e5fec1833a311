"""What a run of pools holds: the same two files as any run, a line for each cell in each block with all of its claims.

A claim is a sandbox asked for at an intended time and at a wanted start state, from a pool or from a substrate itself.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from excise.meter.records import Provenance, Quiet, Skipped, State

POOL_SCHEMA = 1

Mode = Literal["none", "exact", "closest"]
"""Who is asked. none: the substrate itself. exact: a pool that hands out what was wanted exactly, or makes it. closest: a pool
that hands out what needs the least."""
Depth = Literal["", "base", "image", "repo", "sibling", "deps"]
"""What the idle sandboxes of a pool hold of what is wanted. sibling: another commit, with the same lock. Empty: whatever
earlier claims left."""


class PoolCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One combination of factors: a row of the table."""

    source: str
    """The substrate that makes the sandboxes."""
    address: str
    """What is asked: the source, or a pool over it with its options."""
    mode: Mode = "none"
    state: State = "warm"
    """What there is before a claim. warm: the image. repo-warm, deps-warm: what steps up to there led to is kept, as files.
    pooled: idle sandboxes."""
    depth: Depth = ""
    idle: int = 0
    """How many sandboxes of that depth are idle before the first claim."""
    claims: int = 1
    arrivals_per_s: float = 0.0
    """They come at random times, so many a second, whether or not those before them have ended. 0: all at once."""
    lead: int = 0
    """Tasks that have one idle sandbox each before the first claim: the last ones asked for before, as far as there is room."""
    zipf: float | None = None
    """How unevenly tasks are asked for: the k-th most often in proportion to k^-zipf. None: one task alone."""
    places: int | None = None
    """How many sandboxes the pool may have, idle, claimed or in the making."""
    memory_percent: int | None = None
    """The same as a part of all tasks."""
    kept: bool = False
    """What steps led to is kept as files by the source, of all tasks, and sandboxes begin with it."""

    def words(self) -> str:
        """`namespace, closest, zipf 0.8, 25 %, 30 claims at 6/s`."""
        said = [self.source, "steps kept" if self.kept else self.mode if self.mode != "none" else f"no pool, {self.state}"]
        said += [f"{self.idle} idle at {self.depth}"] if self.depth else []
        said += [f"zipf {self.zipf:g}"] if self.zipf is not None else []
        if self.memory_percent is not None:
            said.append(f"{self.memory_percent} %")
        said.append(f"{self.claims} claims" if self.claims != 1 else "1 claim")
        return ", ".join(said) + (f" at {self.arrivals_per_s:g}/s" if self.arrivals_per_s else "")

    def beside(self) -> "PoolCell":
        """What is equal in the cells that are compared with each other: all but who is asked, and what it may hold."""
        return PoolCell(source=self.source, address="", claims=self.claims, arrivals_per_s=self.arrivals_per_s, zipf=self.zipf)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One sandbox that was asked for. It is `late_ns + ready_ns` from when it was to be asked for until it was ready."""

    task: int
    intended_ns: int
    """When it was to be asked for, from the beginning of the wave."""
    late_ns: int
    """How much later it was."""
    ready_ns: int
    """From asking until it was at the start state."""
    total_ns: int
    """From asking until it was closed: a short rollout, checked."""
    hit: str = ""
    """What the pool found: deps, repo, sibling, image, base, template, miss; empty where no pool was asked."""
    failure: str | None = None


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. Any run can be repeated from this record."""

    cells: tuple[PoolCell, ...]
    image: str
    """What the repositories were added to."""
    workload: str
    seed: int = 0
    blocks: int | None = None
    """Measured blocks; None: as many whole ones as the budget holds."""
    budget_s: float | None = None
    warmup_blocks: int = 1
    quiet_s: float = 0.02
    name: str = ""


class PoolTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cell in one block: a pool's or a substrate's short life, from nothing to nothing."""

    run: str
    block: int
    position: int
    cell: PoolCell
    warmup: bool = False
    noisy: bool = False
    quiet: Quiet
    claims: tuple[Claim, ...] = ()
    floor_ns: tuple[int, ...] = ()
    """The least that the kernel asks for a program, before the wave."""
    wall_ns: int = 0
    """From the first intended start until everything was closed, and the pool had done what there was to do."""
    cpu_s: float = 0.0
    """Busy CPU seconds of the whole host meanwhile: sandboxes, refill, resets, daemons, and other people's."""
    lead_cpu_s: float = 0.0
    """The same before: filling the pool, or what else is kept."""
    close_cpu_s: float = 0.0
    """The same after: closing the pool, and what was idle in it."""
    steal_s: float = 0.0
    written_bytes: int | None = None
    figures: Mapping[str, float] = {}
    """What the pool says of itself at the end, as far as it is numbers."""
    failure: str | None = None
    """Why there is no claim at all."""


class PoolHeader(msgspec.Struct, frozen=True, kw_only=True):
    """run.json of a run of pools."""

    schema: int = POOL_SCHEMA
    kind: Literal["pool"] = "pool"
    id: str
    started: str
    plan: PoolPlan
    provenance: Provenance
    skipped: tuple[Skipped, ...] = ()
