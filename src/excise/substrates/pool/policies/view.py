"""What a policy sees, and what it is told: records, no more."""

from collections.abc import Mapping

import msgspec

from excise.spec import Stage


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One state, as the pool has seen it."""

    stage: Stage
    idle: int = 0
    filling: int = 0
    """In the making, to be idle."""
    rate_per_s: float = 0.0
    """Claims that want it."""
    refill_s: float = 0.0
    """What it takes to make one."""
    saved_s: float = 0.0
    """What a claim that finds one is spared."""
    bytes: int = 0
    """Of one."""
    last_asked_s: float = 0.0


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer says it will ask for: `count` at once, as a GRPO group is. `at_s` is of the view's clock; None: next."""

    key: str
    count: int
    at_s: float | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that a policy sees."""

    now_s: float
    states: Mapping[str, Seen]
    coming: tuple[Coming, ...] = ()
    count: int = 0
    """Idle, in the making and claimed."""
    cap: int = 1
    memory_bytes: int = 0
    """Of all of these."""
    memory_cap_bytes: int | None = None
    parallel: int = 1
    """How many are made at once."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool's owner asked for."""

    fixed: Mapping[str, int] = {}
    """So many of these states, whatever is asked for."""
    percentile: float | None = 0.95
    """Hold enough that this part of all waits for a refill finds one idle; None: do not follow demand."""
