"""What states cost: a sandbox with a hundred changed files is saved, brought back, or made eight of."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable

from excise.action import Exec, Shell
from excise.clock import now_ns
from excise.meter.latency_samples import PROGRAM, SESSION, OtherWork, Samples, check, create
from excise.spec import Spec
from excise.substrate import Handle, Snapshot, Substrate

FILES = 100
CHANGE = f'mkdir -p changed && i=0 && while [ $i -lt {FILES} ]; do echo "$0 $i" > changed/$i; i=$((i+1)); done'
"""Inside, in the working directory: the files were there before, so that each is copied up as it is changed."""
LEFT = "sleep 100000 >/dev/null 2>&1 &"


class States:
    """A sandbox, and the state it is brought back to before each sample: `FILES` files, which the sample then changes."""

    def __init__(self, substrate: Substrate, origin: Handle, base: Snapshot) -> None:
        self.substrate = substrate
        self.origin = origin
        self._base = base
        self._is_base = True

    @classmethod
    async def begin(cls, substrate: Substrate, spec: Spec) -> "States":
        origin = await create(substrate, spec)
        try:
            await origin.ready()
            await _done(origin, Shell(CHANGE))
            return cls(substrate, origin, await origin.snapshot())
        except BaseException:
            await origin.close()
            raise

    async def changed(self, *, lively: bool) -> None:
        """The same state before each sample; `lively`: with a session and a background process in it."""
        if not self._is_base:
            await self.origin.reset(self._base)
        self._is_base = False
        await _done(self.origin, Exec(("sh", "-c", CHANGE, secrets.token_hex(8))))
        if lively:
            await _done(self.origin, Shell(":", session=SESSION))
            await _done(self.origin, Shell(LEFT))

    async def back(self) -> None:
        """To the state, and that is the sample."""
        await self.origin.reset(self._base)
        self._is_base = True

    async def close(self) -> None:
        try:
            await self.origin.close()
        finally:
            await self.substrate.discard(self._base)


class Reset:
    """From the call to its return; or, `until_answer`, to the first command's result, as of `create`."""

    def __init__(self, states: States, *, until_answer: bool) -> None:
        self._states = states
        self._until_answer = until_answer

    async def sample(self, into: Samples) -> None:
        await self._states.changed(lively=True)
        begun = now_ns()
        await self._states.back()
        returned = now_ns()
        await answered(self._states.origin)
        into.took_ns.append((now_ns() if self._until_answer else returned) - begun)

    async def close(self) -> None:
        await self._states.close()


class Save:
    """A snapshot; where something lives in the sandbox, it lives on."""

    def __init__(self, states: States, *, lively: bool) -> None:
        self._states = states
        self._lively = lively

    async def sample(self, into: Samples) -> None:
        await self._states.changed(lively=self._lively)
        begun = now_ns()
        made = await self._states.origin.snapshot()
        into.took_ns.append(now_ns() - begun)
        await answered(self._states.origin)
        await self._states.substrate.discard(made)

    async def close(self) -> None:
        await self._states.close()


class Fork:
    """From the call until every child has answered; that all are closed is told apart."""

    def __init__(self, states: States, count: int) -> None:
        self._states = states
        self._count = count

    async def sample(self, into: Samples) -> None:
        await self._states.changed(lively=False)
        substrate = self._states.substrate
        children: list[Handle] = []
        begun = now_ns()
        made = await self._states.origin.snapshot()
        try:
            await all_of(self._child(made, children) for _ in range(self._count))
            into.took_ns.append(now_ns() - begun)
        finally:
            closing = now_ns()
            await asyncio.gather(*(child.close() for child in children))
            into.close_ns.append(now_ns() - closing)
            await substrate.discard(made)

    async def _child(self, snapshot: Snapshot, children: list[Handle]) -> None:
        child = await create(self._states.substrate, snapshot)
        children.append(child)
        await answered(child)

    async def close(self) -> None:
        await self._states.close()


MADE: dict[str, Callable[[States], Reset | Save | Fork]] = {
    "reset": lambda states: Reset(states, until_answer=False),
    "reset-answer": lambda states: Reset(states, until_answer=True),
    "snapshot": lambda states: Save(states, lively=False),
    "snapshot-live": lambda states: Save(states, lively=True),
    "fork-8": lambda states: Fork(states, 8),
    "fork-64": lambda states: Fork(states, 64),
}
"""By the operation's name."""


async def answered(handle: Handle) -> None:
    nonce = secrets.token_hex(8)
    check(await handle.run(Exec((PROGRAM, nonce))), nonce)


async def all_of(works: Iterable[Awaitable[None]]) -> None:
    """All at once; the first failure is raised when all have ended."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _done(handle: Handle, action: Exec | Shell) -> None:
    seen = await handle.run(action)
    if not seen.ok:
        raise OtherWork(f"a state was to be made and {seen.text[:200]!r} came back")
