"""A living sandbox that is asked whether it lives, and becomes one of another spec: what warm pools stand on."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from excise.action import End, Observation, Shell
from excise.contract import scripts
from excise.contract.bench import ACTION_S, Bench
from excise.contract.case import broken, case, equal, expect, succeeded, told
from excise.contract.cases_network import DIRECTLY, answering, fetch
from excise.contract.watch import sh
from excise.errors import CreateError, SandboxLost, SpecError, Unsupported
from excise.spec import Allow, Limits, Network, Secret, Spec, Stage, Step
from excise.substrate import Handle, Term

MEBIBYTE = 1 << 20
SOON_S = 20.0


async def _idle(bench: Bench, **changes: Any) -> Handle:
    """A sandbox that is made to be given another spec's terms later, as a pool makes them."""
    return await bench.handle(_prepared(bench.spec, bench, **changes))


def _prepared(spec: Spec, bench: Bench, **changes: Any) -> Spec:
    needs = spec.needs | {"adopts"} if bench.capabilities.adopts else spec.needs
    return msgspec.structs.replace(spec, needs=needs, **changes)


def _without_steps(bench: Bench, **changes: Any) -> Spec:
    """The suite's spec for a sandbox that has its steps done."""
    return _prepared(bench.spec.with_steps(()), bench, **changes)


async def _adopt(bench: Bench, handle: Handle, **changes: Any) -> None:
    await handle.adopt(_without_steps(bench, **changes))
    await handle.ready()


async def _run(handle: Handle, script: str) -> Observation:
    return await handle.run(Shell(script, timeout_s=ACTION_S))


# ---- whether it lives


@case(
    promise="alive returns for a sandbox that answers, at any time, and raises SandboxLost for one that is gone.",
    why="A pool that hands out what died on its shelf fails a rollout that had done nothing.",
)
async def alive_tells_the_dead(bench: Bench) -> None:
    handle = await bench.handle()
    await _in_time(handle)
    busy = bench.begin(handle.run(Shell(scripts.SAY_STARTED_THEN_SLEEP)))
    succeeded(await _run(handle, scripts.WAIT_FOR_STARTED), "waiting for the action to begin")
    await asyncio.gather(*(_in_time(handle) for _ in range(8)))
    expect(not busy.done(), "an action ended when the sandbox was asked whether it lives")
    doomed = await bench.substrate.attach(handle.id) if bench.capabilities.attach else handle
    await doomed.close()
    try:
        await _in_time(handle)
    except SandboxLost:
        return
    broken("a sandbox that is gone is said to be alive")


async def _in_time(handle: Handle) -> None:
    try:
        async with asyncio.timeout(SOON_S):
            await handle.alive()
    except TimeoutError:
        broken(f"alive had no answer after {SOON_S:g} s")


# ---- limits


@case(
    promise="A memory limit that was adopted holds, and running into it is told.",
    why="A warm sandbox was made before anybody knew whose it would be; its limits are the rollout's all the same.",
    needs=("adopts.memory_bytes",),
)
async def adopted_memory_limit_holds(bench: Bench) -> None:
    handle = await _idle(bench, limits=Limits())
    equal((await _run(handle, scripts.EAT_256_MIB)).stdout, b"survived\n", "256 MiB without a limit")
    await _adopt(bench, handle, limits=Limits(memory_bytes=64 * MEBIBYTE))
    seen = await _run(handle, scripts.EAT_256_MIB)
    expect(seen.end is End.OUT_OF_MEMORY, f"256 MiB under an adopted limit of 64 MiB are told as {told(seen)}")
    equal((await _run(handle, scripts.ECHO_OK)).stdout, b"ok\n", "the next action's answer")


@case(
    promise="A limit on processes that was adopted holds, and running into it is told.",
    why="A fork bomb does not ask whether its sandbox is new.",
    needs=("adopts.pids",),
)
async def adopted_pids_limit_holds(bench: Bench) -> None:
    handle = await _idle(bench, limits=Limits())
    await _adopt(bench, handle, limits=Limits(pids=32))
    seen = await _run(handle, scripts.START_64_PROCESSES)
    expect(seen.end is End.OUT_OF_PIDS, f"64 processes under an adopted limit of 32 are told as {told(seen)}")


@case(
    promise="A disk limit that was adopted holds, and running into it is told.",
    why="A log that fills the host's disk fails every other rollout on it.",
    needs=("adopts.disk_bytes",),
)
async def adopted_disk_limit_holds(bench: Bench) -> None:
    handle = await _idle(bench, limits=Limits())
    await _adopt(bench, handle, limits=Limits(disk_bytes=16 * MEBIBYTE))
    seen = await _run(handle, scripts.FILL_64_MIB)
    expect(seen.end is End.OUT_OF_DISK, f"64 MiB on an adopted disk of 16 MiB are told as {told(seen)}")


@case(
    promise="A limit that the adopted spec does not have, or has larger, is lifted.",
    why="Yesterday's small rollout must not starve today's: it would look as if the policy had failed.",
    needs=("adopts.memory_bytes",),
)
async def lifted_limits_are_lifted(bench: Bench) -> None:
    handle = await _idle(bench, limits=Limits(memory_bytes=64 * MEBIBYTE))
    for wider in (Limits(memory_bytes=2048 * MEBIBYTE), Limits()):
        await _adopt(bench, handle, limits=wider)
        seen = await _run(handle, scripts.EAT_256_MIB)
        equal(seen.stdout, b"survived\n", f"256 MiB when the limit of 64 MiB became {wider.memory_bytes}")
        await _adopt(bench, handle, limits=Limits(memory_bytes=64 * MEBIBYTE))
        expect(not (await _run(handle, scripts.EAT_256_MIB)).ok, "256 MiB were used under a limit of 64 MiB that came back")


# ---- secrets and network


@case(
    promise="Adopted secrets reach actions and sessions, those before them are gone, and no error's text holds one.",
    why="A token of another rollout's is worse than none, and a log with a token in it is worse still.",
    needs=("adopts.secrets",),
)
async def adopted_secrets_reach(bench: Bench) -> None:
    handle = await _idle(bench, secrets={"VALUE": Secret("of the one before")})
    secret, name = f"secret-{bench.nonce}", "main" if bench.capabilities.sessions else None
    for session in {None, name}:
        await handle.run(Shell(scripts.TRUE, session=session))
    await _adopt(bench, handle, secrets={"TOKEN": Secret(secret)})
    for session in {None, name}:
        seen = await handle.run(Shell(scripts.PRINT_TOKEN, session=session))
        equal(seen.stdout.decode(), secret, "what an action sees of an adopted secret")
        equal((await handle.run(Shell(scripts.PRINT_VALUE, session=session))).stdout, b"", "what is seen of the one before")
    try:
        await _adopt(bench, handle, secrets={"TOKEN": Secret(secret)}, steps=(_step(scripts.STEP_PRINTS_TOKEN),))
    except CreateError as error:
        expect(secret not in f"{error} {error!r}", "the error of an adopted step holds the secret")
        return
    broken("a step that was left to do failed, and ready did not say so")


@case(
    promise="An adopted network holds, either way; the steps left to do have build_network=.",
    why="A sandbox that was warmed with a network and keeps it lets a policy look the answer up.",
    needs=("adopts.network", "network.allow", "network.none"),
)
async def adopted_network_holds(bench: Bench) -> None:
    with answering(bench.nonce) as server:
        host, port = server.place
        allow = Allow((host,), (port,))
        reach = partial(_reaches, bench, fetch(server))
        handle = await _idle(bench, network="none")
        expect(not (await handle.run(fetch(server))).ok, "a server is reached without a network")
        await reach(handle, network=allow)
        await _adopt(bench, handle, network="none")
        for how in ({}, DIRECTLY):
            expect(not (await handle.run(fetch(server, **how))).ok, "an action has the network of the spec before")
        if not bench.capabilities.build_network:
            return
        step = Step("fetch", (sh(scripts.FETCH_IN_STEP, host, str(port), timeout_s=20),))
        await _adopt(bench, handle, network="none", build_network=allow, steps=(step,))
        equal((await _run(handle, scripts.CAT_FETCHED)).stdout.decode(), bench.nonce, "what an adopted step fetched")
        expect(not (await handle.run(fetch(server))).ok, "an action has the adopted steps' network")
        await reach(await _idle(bench, network=allow), network=allow)


async def _reaches(bench: Bench, asking: Any, handle: Handle, network: Network) -> None:
    await _adopt(bench, handle, network=network)
    equal((await handle.run(asking)).stdout.decode(), bench.nonce, "what a server says that the adopted network allows")


# ---- steps, boot and ready


def _step(script: str) -> Step:
    return Step(script[:8], (Shell(script, timeout_s=ACTION_S),), Stage.DEPS)


@case(
    promise="The steps of an adopted spec are those still to be done: ready does them, in order, once.",
    why="A warm sandbox is worth having because the rest is little; done twice it is another state.",
)
async def adopted_steps_run_once(bench: Bench) -> None:
    first = Step("first", (Shell(scripts.STEP_1, timeout_s=ACTION_S),))
    handle = await _idle(bench, steps=(*bench.spec.steps, first))
    await handle.adopt(_without_steps(bench, steps=(_step(scripts.STEP_2), _step(scripts.STEP_3))))
    await handle.ready()
    await handle.ready()
    equal((await _run(handle, scripts.CAT_ORDER)).stdout, b"1\n2\n3\n", "what the steps wrote")
    await _adopt(bench, handle)
    if "start" in bench.capabilities.diff:
        with suppress(Unsupported):  # who cannot tell the steps' doing from a rollout's says so
            equal(await handle.diff(None), (), "what is told as changed since the steps were done")
    equal((await _run(handle, scripts.CAT_ORDER)).stdout, b"1\n2\n3\n", "what was written when no step was left")


@case(
    promise="The boot and ready commands of an adopted spec run before ready returns, as after a create.",
    why="The service that a rollout talks to is not part of the files that a pool keeps warm.",
    needs=("background",),
)
async def adopted_boot_and_ready(bench: Bench) -> None:
    handle = await _idle(bench, boot=(), ready=())
    boot, ready = (Shell(scripts.BOOT),), (Shell(scripts.IS_UP), Shell(scripts.COUNT_PROBE))
    await handle.adopt(_without_steps(bench, boot=boot, ready=ready))
    try:
        async with asyncio.timeout(SOON_S):
            await handle.ready()
    except TimeoutError:
        broken("what the boot command was to start is not up")
    succeeded(await _run(handle, scripts.WAIT_FOR_BEAT), "waiting for the service to run on")
    equal((await _run(handle, scripts.CAT_PROBES)).stdout, b"probe\n", "what the ready command wrote")


# ---- refusals and resets


@case(
    promise="What a living sandbox cannot take on is a SpecError, and it stays as it was.",
    why="A term that is quietly not taken on is a limit that is not there.",
)
async def adopt_refuses_what_differs(bench: Bench) -> None:
    handle = await _idle(bench)
    taken: list[str] = []
    for what, changes in _not_adoptable(bench):
        try:
            await handle.adopt(_without_steps(bench, **changes))
        except SpecError:
            continue
        taken.append(what)
    expect(not taken, f"not declared, or no term at all, and yet taken on: {', '.join(taken)}")
    await _adopt(bench, handle)
    equal((await _run(handle, scripts.ECHO_OK)).stdout, b"ok\n", "an action after all that was refused")


def _not_adoptable(bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "image", {"image": "excise-no-such-image"}
    yield "env", {"env": {"EXCISE_OTHER": "1"}}
    yield "workdir", {"workdir": "/excise-elsewhere"}
    can, limits = bench.capabilities.adopts, bench.capabilities.limits
    sizes: dict[Term, float] = {
        "memory_bytes": 64 * MEBIBYTE,
        "cpus": 1.0,
        "pids": 64,
        "disk_bytes": 64 * MEBIBYTE,
        "inodes": 10_000,
    }
    for name, value in sizes.items():
        if name not in can or name not in limits:
            yield f"limits.{name}", {"limits": msgspec.structs.replace(bench.spec.limits, **{name: value})}
    if "secrets" not in can:
        yield "secrets", {"secrets": {"TOKEN": Secret(bench.nonce)}}
    if "network" not in can:
        yield "network", {"network": "open"}


@case(
    promise="A reset after adopt keeps the adopted terms, also to a state that was saved before.",
    why="A group's siblings begin again and again from one state, with the secrets and limits of their rollout.",
    needs=("snapshot", "adopts.secrets"),
)
async def reset_keeps_adopted_terms(bench: Bench) -> None:
    handle = await _idle(bench)
    early = await handle.snapshot()
    memory = Limits(memory_bytes=64 * MEBIBYTE) if "memory_bytes" in bench.capabilities.adopts else bench.spec.limits
    await _adopt(bench, handle, limits=memory, secrets={"TOKEN": Secret(bench.nonce)})
    late = await handle.snapshot()
    for snapshot in (early, late):
        await handle.reset(snapshot)
        equal((await _run(handle, scripts.PRINT_TOKEN)).stdout.decode(), bench.nonce, "an adopted secret after a reset")
        if memory.memory_bytes is not None:
            expect(not (await _run(handle, scripts.EAT_256_MIB)).ok, "an adopted limit of 64 MiB is gone after a reset")
    for snapshot in (early, late):
        await bench.substrate.discard(snapshot)
