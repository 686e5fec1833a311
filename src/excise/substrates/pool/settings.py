"""What a pool is told: its options, checked."""

import math
import re
from typing import Literal

import msgspec

from excise.errors import SpecError

FLOOR_BYTES = 1 << 20
"""What any sandbox or template is counted as at least: what holds it in this process, in the kernel, in a daemon."""
_SIZE = re.compile(r"(\d+)\s*(|KiB|MiB|GiB|TiB)")
_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}

Match = Literal["closest", "exact", "none"]
Reused = Literal["auto", "reset", "never"]
Policy = Literal["demand", "fixed", "schedule", "none"]


_DEFAULTS = {
    "count": 64,
    "memory_bytes": None,
    "match": "closest",
    "reuse": "auto",
    "policy": "demand",
    "parallel": 4,
    "idle_s": 600.0,
    "percentile": 0.95,
    "lease_s": 300.0,
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every option but the source; `Pool` says what each means."""

    count: int
    memory_bytes: int | None
    match: Match
    reuse: Reused
    policy: Policy
    keep: int
    parallel: int
    idle_s: float
    percentile: float
    lease_s: float

    def said(self) -> dict[str, str]:
        """What is not as it would be anyway, as an address says it."""
        changed = {name: getattr(self, name) for name, usual in _DEFAULTS.items() if getattr(self, name) != usual}
        if self.policy == "fixed" and self.keep != 1:
            changed["keep"] = self.keep
        words = {name: f"{value:g}" if isinstance(value, float) else f"{value}" for name, value in changed.items()}
        return {name.removesuffix("_bytes"): word for name, word in words.items()}

    def check(self) -> None:
        """Refuse what contradicts itself, before anything is made."""
        if self.count < 1:
            raise SpecError(f"pool.count={self.count} is less than one sandbox: raise it")
        if self.memory_bytes is not None and self.memory_bytes < FLOOR_BYTES:
            raise SpecError(f"pool.memory={self.memory_bytes} is less than one sandbox, which counts {FLOOR_BYTES} at least")
        if self.parallel < 1:
            raise SpecError(
                f"pool.parallel={self.parallel}: one sandbox at least must be made at a time; policy=none makes none"
            )
        if not 0 < self.percentile < 1:
            raise SpecError(f"pool.percentile={self.percentile}: it lies between 0 and 1, as 0.95 does")
        for name, value in (("idle_s", self.idle_s), ("lease_s", self.lease_s)):
            if not 0 < value < math.inf:
                raise SpecError(f"pool.{name}={value}: it is a number of seconds above zero")
        if self.keep < 0 or (self.policy == "fixed" and self.keep < 1):
            raise SpecError(f"pool.keep={self.keep}: policy=fixed keeps one sandbox of a state at least")
        if self.keep and self.policy != "fixed":
            raise SpecError(
                f"pool.keep={self.keep} is for policy=fixed, and the policy is {self.policy}: leave one of them out"
            )
        if self.keep > self.count:
            raise SpecError(f"pool.keep={self.keep} is more than pool.count={self.count}, which bounds all sandboxes: raise it")


def size_bytes(given: int | str | None) -> int | None:
    """Bytes, of a number or of words such as 512MiB."""
    if given is None or isinstance(given, int):
        return given
    found = _SIZE.fullmatch(given)
    if found is None:
        raise SpecError(f"pool.memory={given}: it is a number of bytes, or one with KiB, MiB, GiB or TiB after it")
    return int(found[1]) << _UNITS[found[2]]
