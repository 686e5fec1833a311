"""What a pool did, as numbers: for `excise pool`, for Prometheus, for a look from Python."""

import os
from collections import deque
from collections.abc import Mapping

import msgspec

RECENT = 4096
"""How many claims and refills are remembered one by one."""
MOST_RECORDS = 100
KINDS = ("deps", "repo", "sibling", "image", "base", "template", "miss")
"""What a claim found, the deepest first."""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A state that the pool could not make."""

    state: str
    reason: str
    """What the last attempt said."""
    attempts: int
    """In a row."""
    next_s: float | None
    """Seconds until it is tried again; None: not before a claim of that state has succeeded."""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that was not what it should have been after its reset. It is closed; its state is not reused again."""

    state: str
    sandbox: str
    at_s: float
    """On the event loop's clock."""
    evidence: tuple[str, ...]
    """What differed, or what the proof said."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A pool so far; `hits` and `misses` count claims that succeeded."""

    hits: Mapping[str, int]
    """By what was found: deps, repo, sibling, image, base, template."""
    misses: int
    failed: int
    """Claims that raised."""
    claim_s: tuple[float, ...]
    """How long the last claims took, from being asked for to ready."""
    refill_lag_s: tuple[float, ...]
    """From a sandbox being wanted on the shelf to its being there, of the last refills."""
    refilled: int
    unused: int
    """Made in advance, and closed without a claim."""
    unused_s: float
    """What making those took."""
    dead: int
    """Found dead at a claim, and thrown away."""
    reused: int
    discarded: int
    """Closed after a rollout."""
    evicted: int
    expired: int
    quarantine: tuple[Quarantine, ...]
    failing: tuple[Failing, ...]
    held_back: str
    """Why nothing is made in advance now; empty if it is."""
    idle: Mapping[str, int]
    """Shelved sandboxes by depth: base, image, repo, deps."""
    idle_bytes: int
    templates: int
    filling: int
    claimed: int
    waiting: int
    """Claims that wait for a place."""
    count: int
    count_cap: int
    memory_bytes: int
    memory_cap_bytes: int | None
    cpu_s: float
    """Processor time of this process and of the children it has waited for since the pool began; no daemon's."""


class Counts:
    """What a pool counts while it runs."""

    def __init__(self) -> None:
        self.hits: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.failed = self.refilled = self.unused = self.dead = self.reused = self.discarded = self.evicted = self.expired = 0
        self.unused_s = 0.0
        self.claim_s: deque[float] = deque(maxlen=RECENT)
        self.refill_lag_s: deque[float] = deque(maxlen=RECENT)
        self.quarantine: deque[Quarantine] = deque(maxlen=MOST_RECORDS)
        self._cpu_s = _cpu_s()

    def cpu_s(self) -> float:
        return _cpu_s() - self._cpu_s


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
