"""What a load leaves in a file: every claim, what the pool looked like second by second, and its figures at the end."""

from collections.abc import Mapping
from typing import Any

import msgspec

from excise.loading.processor import Spent
from excise.loading.tally import Claim

SCHEMA = 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The pool at one moment."""

    at_s: float
    """From the beginning of the load."""
    arrived: int
    waiting: int
    holding: int
    hits: Mapping[str, int]
    """Claims so far, by what they found."""
    idle: Mapping[str, int]
    idle_bytes: int
    filling: int
    spent: Spent


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one pool."""

    schema: int = SCHEMA
    kind: str = "pool-load"
    address: str
    load: str
    """As it was asked for: poisson:4, burst:64, replay:FILE's name."""
    for_s: float
    hold_s: float
    seed: int
    ended_early: bool
    took_s: float
    claims: tuple[Claim, ...]
    losses: Mapping[str, int]
    samples: tuple[Sample, ...]
    spent: Spent
    figures: Mapping[str, Any]
    """Of the pool before it was closed: see `Pool.figures`."""
