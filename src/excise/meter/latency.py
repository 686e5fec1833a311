"""Micro-latencies in blocks: samples of one operation, each beside the floor, in seeded random order of cells."""

import os
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from excise.action import Exec, Shell
from excise.clock import now_ns
from excise.meter.admission import Admitted
from excise.meter.latency_records import LatencyCell, LatencyPlan, LatencyTrial
from excise.meter.latency_samples import PROGRAM, SESSION, OtherWork, Samples, check, create
from excise.meter.latency_states import MADE, States
from excise.meter.privacy import one_line, without_home
from excise.spec import Limits, Spec
from excise.substrate import Capabilities, Handle, Substrate


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
    measured = await _made(cell, substrate, spec)
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


async def _made(cell: LatencyCell, substrate: Substrate, spec: Spec) -> Measured:
    if cell.operation == "create":
        return _Create(substrate, spec)
    if cell.operation in MADE:
        return MADE[cell.operation](await States.begin(substrate, spec))
    return await _live(cell, substrate, spec)


class _Create:
    """From the call to the first result; nothing of the sandbox exists before."""

    def __init__(self, substrate: Substrate, spec: Spec) -> None:
        self._substrate = substrate
        self._spec = spec

    async def sample(self, into: Samples) -> None:
        nonce = secrets.token_hex(8)
        begun = now_ns()
        handle = await create(self._substrate, self._spec)
        try:
            answer = await handle.run(Exec((PROGRAM, nonce)))
            ended = now_ns()
        finally:
            closing = now_ns()
            await handle.close()
            closed = now_ns()
        check(answer, nonce)
        into.took_ns.append(ended - begun)
        into.close_ns.append(closed - closing)

    async def close(self) -> None: ...


async def _live(cell: LatencyCell, substrate: Substrate, spec: Spec) -> "_Live":
    handle = await create(substrate, spec)
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
        action = Shell(f"echo {nonce}", session=SESSION) if self._session else Exec((PROGRAM, nonce))
        begun = now_ns()
        answer = await self._handle.run(action)
        into.took_ns.append(now_ns() - begun)
        check(answer, nonce)

    async def close(self) -> None:
        await self._handle.close()
