"""The protocol every tier follows, and the answers it insists on.

A workload is a fixed sequence of actions, so that action i of one substrate can be paired with action i of another. What
changes from trial to trial is the nonce: an answer that was kept from an earlier trial is a wrong answer.
"""

from typing import Protocol

import msgspec

from excise.action import Action, Observation
from excise.spec import Spec

_SHOWN_BYTES = 60


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must be for the trial to have done the same work as every other."""

    exit_code: int = 0
    stdout: bytes | None = None
    """The exact output; None where it may differ."""

    def fault(self, seen: Observation) -> str | None:
        """Why `seen` is not the expected answer, or None if it is."""
        if seen.end.value != "exited":
            return f"it {seen.end.value.replace('_', ' ')}"
        if seen.exit_code != self.exit_code:
            return f"exit code {seen.exit_code}, not {self.exit_code}"
        if self.stdout is not None and seen.stdout != self.stdout:
            return f"it answered {seen.stdout[:_SHOWN_BYTES]!r}, not {self.stdout[:_SHOWN_BYTES]!r}"
        return None


class Turn(msgspec.Struct, frozen=True):
    """One action and what must come back."""

    action: Action
    expect: Expect = Expect()


class Workload(Protocol):
    """A tier, or a user's own trajectory."""

    @property
    def name(self) -> str:
        """As in results and reports; what changes the work (its length, say) is part of it."""
        ...

    def spec(self, image: str) -> Spec:
        """The start state on `image`."""
        ...

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        """The rollout's actions. Their number and kinds are the same for every nonce."""
        ...
