"""Where a rollout happens: how its sandbox comes to the start state, and what becomes of it afterwards."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from excise.action import Shell
from excise.errors import SpecError
from excise.handles import finish
from excise.meter.records import RESET, Reset
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Snapshot, Substrate
from excise.trace import Trace

GIT = "git reset -q --hard && git clean -qfdx"
_LEASE_S = 3600.0
_TIMEOUT_S = 120.0


class Place(Protocol):
    """Hands out one sandbox at a time, at the start state."""

    @property
    def fresh(self) -> bool:
        """Whether every rollout must find a sandbox that nobody used before."""
        ...

    async def prepare(self) -> None:
        """What is done once and not for every rollout; in no trial's time. What was lost is made again."""
        ...

    def sandbox(self, trace: Trace) -> AbstractAsyncContextManager[Sandbox]: ...
    async def close(self) -> None: ...


class Unpulled(Protocol):
    """Where images come from that no machine holds."""

    async def next(self) -> str:
        """The name of another one."""
        ...


def place(reset: Reset, substrate: Substrate, spec: Spec) -> Place:
    """The place for this reset strategy."""
    match reset:
        case "recreate":
            return Recreate(substrate, spec)
        case "fork":
            return Fork(substrate, spec)
        case _:
            return Reused(substrate, spec, by_git=reset == "git")


class Recreate:
    """A new sandbox for every rollout."""

    fresh = True

    def __init__(self, substrate: Substrate, spec: Spec) -> None:
        self._substrate = substrate
        self._spec = spec

    async def prepare(self) -> None: ...
    def sandbox(self, trace: Trace) -> Sandbox:
        return Sandbox(self._substrate, self._spec)

    async def close(self) -> None: ...


class Fork:
    """Every rollout's sandbox begins as a copy of one state that was prepared before."""

    fresh = True

    def __init__(self, substrate: Substrate, spec: Spec) -> None:
        self._substrate = substrate
        self._spec = spec
        self._snapshot: Snapshot | None = None

    async def prepare(self) -> None:
        if self._snapshot is None:
            async with Sandbox(self._substrate, self._spec, ttl_s=_LEASE_S) as origin:
                self._snapshot = await origin.snapshot()

    def sandbox(self, trace: Trace) -> Sandbox:
        assert self._snapshot is not None
        return Sandbox(self._substrate, self._snapshot)

    async def close(self) -> None:
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            await finish(self._substrate.discard(snapshot))


class Reused:
    """One sandbox for a run of rollouts, brought back after each; a rollout that failed costs it its life."""

    fresh = False

    def __init__(self, substrate: Substrate, spec: Spec, *, by_git: bool) -> None:
        self._substrate = substrate
        self._spec = spec
        self._by_git = by_git
        self._box: Sandbox | None = None
        self._snapshot: Snapshot | None = None

    async def prepare(self) -> None:
        if self._box is not None:
            await self._box.renew(_LEASE_S)
            return
        box = Sandbox(self._substrate, self._spec, ttl_s=_LEASE_S)
        await box.open()
        try:
            if self._by_git:
                await _need_repository(box)
            else:
                self._snapshot = await box.snapshot()
        except BaseException:
            await finish(box.close())
            raise
        self._box = box

    @asynccontextmanager
    async def sandbox(self, trace: Trace) -> AsyncGenerator[Sandbox]:
        assert self._box is not None
        try:
            yield self._box
            await self._back(self._box, trace)
        except BaseException:
            await self.close()
            raise

    async def _back(self, box: Sandbox, trace: Trace) -> None:
        if self._snapshot is not None:
            await box.reset(self._snapshot)
            return
        spans = len(trace.spans)
        answer = await box.run(Shell(GIT, timeout_s=_TIMEOUT_S))
        for one in trace.spans[spans:]:
            one.name = RESET
        if not answer.ok:
            raise SpecError(f"git could not bring the repository back: {answer.text.strip() or answer.end.value}")

    async def close(self) -> None:
        box, self._box = self._box, None
        snapshot, self._snapshot = self._snapshot, None
        if box is not None:
            await finish(box.close())
        if snapshot is not None:
            await finish(self._substrate.discard(snapshot))


async def _need_repository(box: Sandbox) -> None:
    if not (await box.run(Shell("git rev-parse --git-dir", timeout_s=_TIMEOUT_S))).ok:
        raise SpecError(
            "the working directory is no git repository when the sandbox is ready; reset it by recreate, snapshot or fork"
        )
