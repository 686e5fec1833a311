"""The protocol every tier follows, and the answers it insists on.

A workload is a fixed sequence of actions, so that action i of one substrate can be paired with action i of another. What
changes from trial to trial is the nonce: an answer that was kept from an earlier trial is a wrong answer.
"""

import hashlib
import re
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from excise.action import Action, End, Observation
from excise.spec import Spec

_SHOWN_BYTES = 60


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must be for the trial to have done the same work as every other."""

    exit_code: int | None = 0
    """None where any will do."""
    end: End = End.EXITED
    stdout: bytes | None = None
    """The exact output; None where it may differ."""
    tail: bytes = b""
    """What the output must end with: the nonce, where the rest is judged by its digest or a pattern."""
    sha256: str | None = None
    """Of the output before its tail."""
    pattern: str | None = None
    """A regular expression that must be found in the output before its tail."""
    parts: tuple["Expect", ...] = ()
    """Of a batch: what each of its actions must answer."""

    def fault(self, seen: Observation) -> str | None:
        """Why `seen` is not the expected answer, or None if it is."""
        if seen.end is not self.end:
            return f"it {seen.end.value.replace('_', ' ')}"
        if self.exit_code is not None and seen.end is End.EXITED and seen.exit_code != self.exit_code:
            return f"exit code {seen.exit_code}, not {self.exit_code}{_last_line(seen)}"
        if self.stdout is not None and seen.stdout != self.stdout:
            return f"it answered {seen.stdout[:_SHOWN_BYTES]!r}, not {self.stdout[:_SHOWN_BYTES]!r}"
        if (fault := self._fault_in(seen.stdout)) is not None:
            return f"{fault}{_last_line(seen)}"
        if self.parts and len(self.parts) != len(seen.parts):
            return f"{len(seen.parts)} actions of its batch were answered, not {len(self.parts)}"
        return next(filter(None, (one.fault(part) for one, part in zip(self.parts, seen.parts, strict=False))), None)

    def _fault_in(self, output: bytes) -> str | None:
        if not output.endswith(self.tail):
            return f"its answer ends in {output[-_SHOWN_BYTES:]!r}, not in {self.tail!r}"
        body = output.removesuffix(self.tail)
        if self.sha256 is not None and (found := hashlib.sha256(body).hexdigest()) != self.sha256:
            return f"it answered {len(body)} bytes with digest {found[:12]}, not {self.sha256[:12]}: {body[:_SHOWN_BYTES]!r}"
        if self.pattern is not None and not re.search(self.pattern, body.decode("utf-8", "replace"), re.MULTILINE):
            return f"its answer has no {self.pattern!r} but {body[-_SHOWN_BYTES:]!r}"
        return None


def _last_line(seen: Observation) -> str:
    """What a command that failed said last: mostly the reason."""
    lines = seen.stderr.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][: 2 * _SHOWN_BYTES]}" if lines else ""


class Turn(msgspec.Struct, frozen=True):
    """One action and what must come back."""

    action: Action
    expect: Expect = Expect()
    think_s: float = 0.0
    """How long whoever was recorded thought before it. It is replayed only where a run asks for that."""


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


@runtime_checkable
class Hosted(Protocol):
    """A workload that needs something of the host for the length of a run: its repository built, a server up."""

    def hosted(self, cache: Path) -> AbstractAsyncContextManager[None]:
        """`spec` and `turns` are asked only inside. `cache` is a directory that outlives the run."""
        ...


def hosted(workload: Workload, cache: Path) -> AbstractAsyncContextManager[None]:
    """`async with hosted(workload, cache):` around every use of a workload; nothing for one that needs nothing."""
    return workload.hosted(cache) if isinstance(workload, Hosted) else nullcontext()


def own_image(workload: Workload) -> str | None:
    """The image a workload names itself, where the caller names none: a user's own file may have one."""
    return getattr(workload, "image", None)


class Requirement(msgspec.Struct, frozen=True):
    """What an image must have: an action that succeeds where it does, and what to do where it does not."""

    action: Action
    sentence: str


@runtime_checkable
class Demanding(Protocol):
    """A workload that not every image will do for."""

    def requirements(self) -> tuple[Requirement, ...]: ...


def requirements(workload: Workload) -> tuple[Requirement, ...]:
    """Tried once before a run, in a sandbox at the start state: better one sentence than a hundred failed trials."""
    return workload.requirements() if isinstance(workload, Demanding) else ()
