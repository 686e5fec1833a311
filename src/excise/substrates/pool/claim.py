"""One claim, from being asked for to its sandbox."""

from collections.abc import Mapping

import msgspec

from excise.spec import Step
from excise.substrates.pool.builds import Build
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.slots import Want


class Claim(msgspec.Struct, eq=False, kw_only=True):
    """One request on its way to a sandbox."""

    want: Want
    owner: Owner
    lease_s: float
    labels: Mapping[str, str]
    ends_s: float
    asked_s: float = 0.0
    request_id: str = ""
    kind: str = "miss"
    """What was found, as the trace and the figures call it. Who had to wait until one was made missed, whatever came of it."""
    found: int = -1
    """After how many steps that was; below zero if nothing was found."""
    steps: tuple[Step, ...] = ()
    """What is still to be run in it."""
    adopted: bool = False
    """It stood on the shelf, or was made of a template: a step that fails may fail because of what was there."""
    missed: bool = False
    shelf: bool = True
    """Look there at all."""
    built: bool = False
    """One was made for it, and others that wanted the same."""
    build: Build | None = None
    made_s: float | None = None
    """What the source's create took, where it had to."""
    waits: bool = False
    """For a place, which somebody else has."""
