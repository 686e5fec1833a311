"""Abilities: attach, list, leases, ports; and that what is not declared is refused, never ignored."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from excise.action import Exec, Pty, Shell
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import broken, case, equal, expect, succeeded
from excise.errors import ExciseError, SandboxLost, SpecError
from excise.spec import Allow, Limits, Mount, Spec
from excise.substrate import Handle, Snapshot

MEBIBYTE = 1 << 20
ATTACH = ("attach",)


@case(
    promise="attach finds a living sandbox by its id, and raises for one that is not there.",
    why="A trainer that restarts wants its sandboxes back, and must not be handed a new one instead.",
    needs=ATTACH,
)
async def attach_finds_it(bench: Bench) -> None:
    handle = await bench.handle()
    succeeded(await handle.run(Shell(scripts.MAKE_GO)), "`touch`")
    again = await bench.substrate.attach(handle.id)
    equal(again.id, handle.id, "the id of the sandbox attached to")
    equal((await again.run(Shell(scripts.WAIT_FOR_GO, timeout_s=10))).stdout, b"went\n", "what is seen of its files")
    await again.close()
    for gone in (handle.id, "excise-no-such-sandbox"):
        try:
            await bench.substrate.attach(gone)
        except ExciseError:
            continue
        broken("attaching to a sandbox that is not there did not raise")


@case(
    promise="list shows living sandboxes by their labels, and only those.",
    why="Accounting and clean-up go by labels; a list that is too long deletes what belongs to others.",
    needs=ATTACH,
)
async def list_by_label(bench: Bench) -> None:
    mine, other = await bench.handle(), await _labelled(bench, {"excise-contract": f"not-{bench.nonce}"})
    listed = await bench.substrate.list(bench.labels)
    equal([entry.id for entry in listed], [mine.id], "the ids listed for a label")
    equal(listed[0].labels.get("excise-contract"), bench.nonce, "the label in the list")
    every = {entry.id for entry in await bench.substrate.list({})}
    expect({mine.id, other.id} <= every, "list without labels does not show all")
    equal(await bench.substrate.list({"excise-contract": "nobody"}), (), "what is listed for a label nobody has")
    await mine.close()
    equal(await bench.substrate.list(bench.labels), (), "what is listed after close")


async def _labelled(bench: Bench, labels: dict[str, str]) -> Handle:
    name = labels["excise-contract"]
    handle = await bench.substrate.create(bench.spec, deadline_s=50.0, lease_s=600.0, labels=labels, request_id=name)
    bench.at_end(handle.close)
    await handle.ready()
    return handle


@case(
    promise="collect removes a sandbox whose lease ran out, says so, and spares those whose lease runs.",
    why="The client that would have closed it is dead; without a lease nobody ever will.",
    needs=ATTACH,
    alone=True,
)
async def collect_takes_the_expired(bench: Bench) -> None:
    kept, expired = await bench.handle(), await bench.handle()
    await expired.renew(0.2)
    await asyncio.sleep(0.5)
    taken = await bench.substrate.collect()
    expect(expired.id in taken, "a sandbox whose lease ran out was not collected")
    expect(kept.id not in taken, "a sandbox whose lease runs was collected")
    equal([entry.id for entry in await bench.substrate.list(bench.labels)], [kept.id], "what is left")
    succeeded(await kept.run(Shell(scripts.TRUE)), "an action in the sandbox that was spared")
    try:
        await expired.run(Shell(scripts.TRUE))
    except SandboxLost:
        return
    broken("an action in a collected sandbox did not raise SandboxLost")


@case(
    promise="connect reaches a port that something inside listens on.",
    why="A browser, a debugger or a tool server inside is only of use if it can be talked to.",
    needs=("ports", "stream"),
)
async def connect_reaches_a_port(bench: Bench) -> None:
    box = await bench.sandbox()
    server = await box.start(scripts.ECHO_SERVER)
    bench.at_end(server.kill)
    succeeded(await box.run(scripts.WAIT_FOR_STARTED), "waiting for the server")
    connection = await box.connect(scripts.ECHO_PORT)
    bench.at_end(connection.close)
    await connection.write(f"{bench.nonce}\n".encode())
    heard = b""
    while not heard.endswith(b"\n"):
        piece = await connection.read()
        expect(piece, "the connection ended without an answer")
        heard += piece
    equal(heard.decode().strip(), bench.nonce, "what came back")


Verb = Callable[[], Awaitable[object]]


@case(
    promise="What is not declared raises Unsupported or SpecError, at once and never mid-rollout; nothing is ignored.",
    why="A limit that is quietly not enforced, or an ability that turns out missing at step 80, wastes the whole run.",
)
async def undeclared_raises(bench: Bench) -> None:
    handle = await bench.handle()
    allowed: list[str] = []
    for what, verb in (*_undeclared_verbs(bench, handle), *_undeclared_specs(bench)):
        try:
            await verb()
        except SpecError:
            continue
        allowed.append(what)
    if not bench.capabilities.guest_clock and (await handle.run(Shell(scripts.TRUE))).guest_ns is not None:
        allowed.append("guest_ns")
    expect(not allowed, f"not declared, and yet not refused: {', '.join(allowed)}")
    succeeded(await handle.run(Shell(scripts.TRUE)), "an action after all that was refused")


def _undeclared_verbs(bench: Bench, handle: Handle) -> Iterator[tuple[str, Verb]]:
    has, substrate = bench.capabilities.has, bench.substrate
    made_up = Snapshot(id="excise-no-such-snapshot", address=substrate.address, spec=bench.spec)
    verbs: dict[str, tuple[tuple[str, Verb], ...]] = {
        "snapshot": (
            ("snapshot()", handle.snapshot),
            ("snapshots()", substrate.snapshots),
            ("reset()", partial(handle.reset, made_up)),
            ("create(Snapshot)", partial(bench.handle, made_up)),
        ),
        "diff": (("diff()", partial(handle.diff, None)),),
        "attach": (("attach()", partial(substrate.attach, handle.id)), ("list()", partial(substrate.list, {}))),
        "pause": (("pause()", handle.pause), ("resume()", handle.resume)),
        "ports": (("connect()", partial(handle.connect, scripts.ECHO_PORT)),),
        "stream": (("start()", partial(handle.start, Exec(("true",)))),),
        "pty": (("pty=", partial(handle.run, Exec(("true",), pty=Pty()))),),
        "sessions": (("session=", partial(handle.run, Shell(scripts.TRUE, session="main"))),),
        "users": (("user=", partial(handle.run, Exec(("true",), user="65534"))),),
    }
    for ability, those in verbs.items():
        if not has(ability):
            yield from those


def _undeclared_specs(bench: Bench) -> Iterator[tuple[str, Verb]]:
    has, changed = bench.capabilities.has, bench.changed
    asked: list[tuple[bool, str, Spec]] = [
        (has("users"), "Spec.user", changed(user="65534")),
        (has("mounts"), "Spec.mounts", changed(mounts=(Mount("/", "/mnt/excise"),))),
        (has("devices"), "Spec.devices", changed(devices=("/dev/null",))),
    ]
    limits = {"memory_bytes": 64 * MEBIBYTE, "cpus": 1.0, "pids": 64, "disk_bytes": 64 * MEBIBYTE, "inodes": 10_000}
    for name, value in limits.items():
        spec = changed(limits=Limits(**{name: value}))  # pyright: ignore[reportArgumentType] - each has its own type
        asked.append((name in bench.capabilities.limits, f"Spec.limits.{name}", spec))
    for mode, network in (("none", "none"), ("open", "open"), ("allow", Allow(("example.org",)))):
        asked.append((mode in bench.capabilities.network, f"Spec.network={mode}", changed(network=network)))
    if "none" in bench.capabilities.network and "open" in bench.capabilities.network:
        differs = changed(network="none", build_network="open")
        asked.append((has("build_network"), "Spec.build_network", differs))
    for kernel in ("intercepted", "own"):
        enough = bench.capabilities.kernel in (kernel, "own")
        asked.append((enough, f"Spec.isolation={kernel}", changed(isolation=kernel)))
    for ability in ("snapshot", "sessions", "attach", "pause"):
        asked.append((has(ability), f"Spec.needs={ability}", changed(needs=frozenset({ability}))))
    for declared, what, spec in asked:
        if not declared:
            yield what, partial(bench.handle, spec)
