"""Micro-latencies in blocks: samples of one operation, each beside the floor, in seeded random order of cells."""

import os
import random
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from excise.action import Exec, Observation, Shell
from excise.clock import now_ns
from excise.meter.admission import Admitted
from excise.meter.latency_records import LatencyCell, LatencyPlan, LatencyTrial
from excise.meter.privacy import one_line, without_home
from excise.spec import Limits, Spec
from excise.substrate import Capabilities, Handle, Substrate

_LEASE_S = 600.0
_DEADLINE_S = 120.0
_SESSION = "main"
PROGRAM = "/usr/bin/echo"
"""By its path, as the floor's: to search for a program is not what is compared."""


class OtherWork(Exception):  # noqa: N818 - it is told as a reason, not raised to a user
    """An answer without its nonce."""


class Floor:
    """The least that the kernel asks for a program: spawn it and wait, synchronously, without pipes.

    It gets the image's own variables, as in a sandbox: with LANG set a program loads a locale, which is its work, not our tax.
    """

    def __init__(self, program: str, env: Mapping[str, str] | None = None) -> None:
        self._program = program
        self._env = dict(env or {})
        self._actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]

    def __call__(self) -> int:
        nonce = secrets.token_hex(8)
        begun = now_ns()
        pid = os.posix_spawn(self._program, [self._program, nonce], self._env, file_actions=self._actions)
        _, status = os.waitpid(pid, 0)
        took_ns = now_ns() - begun
        if status != 0:
            raise OtherWork(f"the floor's program ended with status {status}")
        return took_ns


class Samples(msgspec.Struct):
    """What a cell has seen in one block."""

    took_ns: list[int] = []
    floor_ns: list[int] = []
    close_ns: list[int] = []


class Measured(Protocol):
    """One operation, made ready: a sample when called, and closed in the end."""

    async def sample(self, into: Samples) -> None: ...
    async def close(self) -> None: ...


async def run_latencies(
    plan: LatencyPlan,
    admitted: Mapping[str, Admitted],
    floor: Floor,
    run_id: str,
    keep: Callable[[LatencyTrial], None],
) -> None:
    """Run every block of `plan`; `keep` gets each trial when it is over."""
    cells = [cell for cell in plan.cells if cell.address in admitted]
    for block in range(plan.warmup_blocks + plan.blocks):
        for position, cell in enumerate(_order(plan.seed, block, cells)):
            one = admitted[cell.address]
            samples, failure = Samples(), None
            try:
                await _fill(samples, cell, one.substrate, _spec(plan, one.capabilities), floor)
            except Exception as error:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
                failure = without_home(one_line(error))
            keep(
                LatencyTrial(
                    run=run_id,
                    block=block,
                    position=position,
                    cell=cell,
                    warmup=block < plan.warmup_blocks,
                    took_ns=tuple(samples.took_ns),
                    floor_ns=tuple(samples.floor_ns),
                    close_ns=tuple(samples.close_ns),
                    failure=failure,
                )
            )


def _order(seed: int, block: int, cells: list[LatencyCell]) -> Iterator[LatencyCell]:
    shuffler = random.Random(f"{seed}:{block}")  # noqa: S311 - an order, not a secret
    return iter(shuffler.sample(cells, len(cells)))


def _spec(plan: LatencyPlan, capabilities: Capabilities) -> Spec:
    enforced = {name: getattr(plan.limits, name) for name in plan.limits.asked() & capabilities.limits}
    return Spec(image=plan.image, limits=Limits(**enforced))


async def _fill(samples: Samples, cell: LatencyCell, substrate: Substrate, spec: Spec, floor: Floor) -> None:
    measured = _Create(substrate, spec) if cell.operation == "create" else await _live(cell, substrate, spec)
    try:
        if cell.tight:
            for _ in range(cell.samples):
                await measured.sample(samples)
            samples.floor_ns += [floor() for _ in range(cell.samples)]
        else:
            for _ in range(cell.samples):
                samples.floor_ns.append(floor())
                await measured.sample(samples)
    finally:
        await measured.close()


async def _create(substrate: Substrate, spec: Spec) -> Handle:
    return await substrate.create(spec, deadline_s=_DEADLINE_S, lease_s=_LEASE_S, labels={}, request_id=uuid.uuid4().hex)


class _Create:
    """From the call to the first result; nothing of the sandbox exists before."""

    def __init__(self, substrate: Substrate, spec: Spec) -> None:
        self._substrate = substrate
        self._spec = spec

    async def sample(self, into: Samples) -> None:
        nonce = secrets.token_hex(8)
        begun = now_ns()
        handle = await _create(self._substrate, self._spec)
        try:
            answer = await handle.run(Exec((PROGRAM, nonce)))
            ended = now_ns()
        finally:
            closing = now_ns()
            await handle.close()
            closed = now_ns()
        _check(answer, nonce)
        into.took_ns.append(ended - begun)
        into.close_ns.append(closed - closing)

    async def close(self) -> None: ...


async def _live(cell: LatencyCell, substrate: Substrate, spec: Spec) -> "_Live":
    handle = await _create(substrate, spec)
    try:
        await handle.ready()
        live = _Live(handle, session=cell.operation == "session")
        await live.sample(Samples())  # opens the session, and what else is opened once
    except BaseException:
        await handle.close()
        raise
    return live


class _Live:
    """An action in a sandbox that lives already."""

    def __init__(self, handle: Handle, *, session: bool) -> None:
        self._handle = handle
        self._session = session

    async def sample(self, into: Samples) -> None:
        nonce = secrets.token_hex(8)
        action = Shell(f"echo {nonce}", session=_SESSION) if self._session else Exec((PROGRAM, nonce))
        begun = now_ns()
        answer = await self._handle.run(action)
        into.took_ns.append(now_ns() - begun)
        _check(answer, nonce)

    async def close(self) -> None:
        await self._handle.close()


def _check(answer: Observation, nonce: str) -> None:
    if not answer.ok or answer.stdout != f"{nonce}\n".encode():
        raise OtherWork(f"a nonce was asked for and {answer.text[:200]!r} came back")
