"""The pretend substrate: machines in memory, on whatever clock the event loop has."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from excise.address import Address
from excise.errors import CreateError, SandboxLost, SpecError
from excise.spec import Spec
from excise.substrate import Capabilities, Listed, SessionState, Snapshot, require
from excise.substrates.fake.broken import BROKEN, OF_PROCESSES
from excise.substrates.fake.builtins import programs
from excise.substrates.fake.files import Directory, Tree
from excise.substrates.fake.handle import FakeHandle
from excise.substrates.fake.image import WORKDIR, image, mount, put
from excise.substrates.fake.latency import Chance
from excise.substrates.fake.life import Life
from excise.substrates.fake.proc import Proc, Program

OPTIONS: Final = (
    "create_s",
    "ready_s",
    "action_s",
    "guest_s",
    "close_s",
    "jitter",
    "seed",
    "fail_create",
    "lose",
    "broken",
    "snapshot",
)
EPOCH_NS: Final = 946_684_800_000_000_000
"""What a file's time says when the loop's clock stands at zero: the year 2000."""
CAPABILITIES: Final = Capabilities(
    kernel="shared",
    isolates=frozenset({"files", "processes", "network", "ipc", "users"}),
    snapshot="files",
    diff=frozenset({"start", "snapshot"}),
    adopts=frozenset({"memory_bytes", "pids", "disk_bytes", "inodes", "network", "secrets"}),
    stream=True,
    sessions=True,
    pty=True,
    attach=True,
    users=True,
    pause=True,
    ports=True,
    mounts=True,
    background=True,
    signals=True,
    guest_clock=True,
    limits=frozenset({"memory_bytes", "pids", "disk_bytes", "inodes"}),
    network=frozenset({"none", "allow", "open"}),
    build_network=True,
)


class FakeSubstrate:
    """Pretend machines with scripted latencies and faults. Two of them share nothing, whatever their options.

    Latencies are in seconds: of a create, of getting ready, of an action's way in (`action_s`) and its time inside
    (`guest_s`), of a close. `jitter` spreads them; `fail_create` and `lose` are probabilities; `broken` names the promise
    of the contract this one does not keep.
    """

    def __init__(
        self,
        *,
        create_s: float = 0.0,
        ready_s: float = 0.0,
        action_s: float = 0.0,
        guest_s: float = 0.0,
        close_s: float = 0.0,
        jitter: float = 0.0,
        seed: int = 0,
        fail_create: float = 0.0,
        lose: float = 0.0,
        broken: str = "",
        snapshot: Literal["files", "processes", ""] = "",
    ) -> None:
        if broken and broken not in BROKEN:
            raise SpecError(f"no promise is called {broken!r}; `excise check --list` shows them all")
        given = (create_s, ready_s, action_s, guest_s, close_s, jitter, seed, fail_create, lose, broken, snapshot)
        options: dict[str, float | int | str] = dict(zip(OPTIONS, given, strict=True))
        _check(options)
        self._address = str(Address(name="fake", options={name: f"{value}" for name, value in options.items() if value}))
        self.create_s, self.ready_s, self.action_s, self.guest_s, self.close_s = create_s, ready_s, action_s, guest_s, close_s
        self.fail_create, self.lose = fail_create, lose
        self.broken = frozenset({broken} if broken else ())
        # A promise about what only the other kind of snapshot has can be broken by that kind alone.
        self.carries: Literal["files", "processes"] = snapshot or ("processes" if broken in OF_PROCESSES else "files")
        self.chance = Chance(seed, jitter)
        self._sandboxes: dict[str, FakeHandle] = {}
        self._requests: dict[str, FakeHandle] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._snapshots: dict[str, Kept] = {}
        self._made = 0
        self._lives = 0
        self._programs = programs()
        self._common = Directory(0o777)
        """What sandboxes share that do not keep their files apart."""
        self._used: Tree | None = None

    @property
    def address(self) -> str:
        return self._address

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES if self.carries == "files" else msgspec.structs.replace(CAPABILITIES, snapshot=self.carries)

    async def probe(self) -> Capabilities:
        return self.capabilities

    def install(self, name: str, program: Program) -> None:
        """Put a program of your own into the image of sandboxes made from now on: `async def pytest(proc, argv) -> int`."""
        self._programs[name] = program

    # ---- creating

    async def create(
        self,
        start: Spec | Snapshot,
        *,
        deadline_s: float,
        lease_s: float,
        labels: Mapping[str, str],
        request_id: str,
    ) -> FakeHandle:
        spec = start if isinstance(start, Spec) else start.spec
        if "undeclared-raises" not in self.broken:
            require(spec, self.capabilities, self.address)
        lock = self._locks.setdefault(request_id, asyncio.Lock())
        try:
            async with asyncio.timeout(None if "create-keeps-its-deadline" in self.broken else deadline_s), lock:
                if request_id in self._requests and "request-id-is-idempotent" not in self.broken:
                    return self._requests[request_id]
                made = await self._make(start, lease_s, labels)
        except TimeoutError:
            raise CreateError(f"{self.address} made no sandbox in {deadline_s:g} s; give it longer") from None
        self._requests[request_id] = made
        return made

    async def _make(self, start: Spec | Snapshot, lease_s: float, labels: Mapping[str, str]) -> FakeHandle:
        spec = start if isinstance(start, Spec) else start.spec
        tree = self._fresh(spec) if isinstance(start, Spec) else self.kept(start)
        if "secret-in-no-text" in self.broken:
            labels = {**labels, **{name: secret.reveal() for name, secret in spec.secrets.items()}}
        early = "cancel-create-leaks-nothing" in self.broken
        if not early:
            await self.chance.take(self.create_s)
        if self.chance.happens(self.fail_create):
            raise CreateError(f"{self.address} made no sandbox, as fail_create= asked; try again")
        self._made += 1
        life = self.life(tree, spec, () if isinstance(start, Spec) else start.sessions)
        parent = None if isinstance(start, Spec) else start.id
        if isinstance(start, Snapshot):
            self.carry(start.id, life)
        made = FakeHandle(self, f"fake-{self._made}", life, labels, parent)
        made.lease_ends_s = made.born_s + lease_s
        self._sandboxes[made.id] = made
        if early:
            await self.chance.take(self.create_s)
        return made

    def _fresh(self, spec: Spec) -> Tree:
        if "fresh-means-fresh" in self.broken and self._used is not None:
            return self._used
        loop = asyncio.get_running_loop()
        tree = image(lambda: EPOCH_NS + round(loop.time() * 1e9), tuple(self._programs))
        for asked in spec.mounts:
            mount(tree, asked, sealed="mount-is-there" not in self.broken)
        return tree

    def life(self, tree: Tree, spec: Spec, sessions: tuple[SessionState, ...] = ()) -> Life:
        """A new life on `tree`, apart from all others; its `sessions` begin so."""
        if "sandboxes-share-no-workdir" in self.broken:
            tree.root.entries[WORKDIR.strip("/")] = self._common
        if "sandboxes-share-no-files" in self.broken:
            tree.root.entries["tmp"] = self._common
        self._lives += 1
        life = Life(tree, spec, self._programs, namespace=self._lives, guest_s=self.guest_s, broken=self.broken)
        life.begin_sessions_with(sessions)
        if self.carries == "processes":
            put(tree, "/etc/machine-id", f"{life.machine.boot_id}\n".encode())
        if "sandboxes-share-no-processes" in self.broken:
            life.machine.neighbours = tuple(other.machine for other in self._sandboxes.values())
        return life

    # ---- snapshots

    def keep(self, handle: FakeHandle, parent: str | None, keep_s: float | None) -> Snapshot:
        """Save a sandbox's files."""
        self._lives += 1
        tree, sessions = handle.saved()
        made = Snapshot(
            id=f"fake-snapshot-{self._lives}",
            address=self.address,
            spec=handle.spec,
            parent=parent,
            carries=self.carries,
            size_bytes=tree.used_bytes,
            lease_s=keep_s,
            sessions=sessions,
        )
        ends_s = math.inf if keep_s is None else asyncio.get_running_loop().time() + keep_s
        machine = handle.machine
        left = machine.left() if self.carries == "processes" and "snapshot-carries-processes" not in self.broken else []
        memory = Memory(left, machine.random.getstate(), machine.boot_id, machine.now_ns())
        self._snapshots[made.id] = Kept(tree, handle.id, made, ends_s, memory)
        return made

    def kept(self, snapshot: Snapshot) -> Tree:
        """The files of a snapshot, for one sandbox to change."""
        found = self._snapshots.get(snapshot.id)
        if found is None or found.is_over():
            raise SpecError(f"{self.address} has no snapshot {snapshot.id}: it was discarded, or is another substrate's")
        if "fork-gives-the-same-start" in self.broken:
            return found.tree
        now_ns = round(asyncio.get_running_loop().time() * 1e9)
        return found.tree.copy(now_ns - found.memory.at_ns if "copies-know-the-time" in self.broken else 0)

    def carry(self, snapshot: str, life: Life) -> None:
        """What a snapshot has besides files goes on in a life that begins with these."""
        if self.carries == "files":
            return
        memory, machine = self._snapshots[snapshot].memory, life.machine
        if "copies-draw-other-numbers" in self.broken:
            machine.random.setstate(memory.random)
        if "copies-have-other-names" in self.broken:
            machine.boot_id = memory.boot_id
        put(machine.tree, "/etc/machine-id", f"{machine.boot_id}\n".encode())
        machine.carry(memory.left)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        if "kept-snapshot-is-listed" in self.broken:
            return ()
        return tuple(kept.snapshot for kept in self._snapshots.values() if not kept.is_over())

    async def discard(self, snapshot: Snapshot) -> None:
        self._snapshots.pop(snapshot.id, None)

    # ---- finding and ending

    async def attach(self, id: str) -> FakeHandle:
        if "attach-finds-it" in self.broken:
            return await self._make(Spec(), 0.0, {})
        if id not in self._sandboxes:
            raise SandboxLost(f"{self.address} has no sandbox {id}")
        return self._sandboxes[id]

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        now_s = asyncio.get_running_loop().time()
        wanted: Mapping[str, str] = {} if "list-by-label" in self.broken else labels
        return tuple(
            Listed(id=one.id, labels=one.labels, age_s=now_s - one.born_s, lease_left_s=one.lease_ends_s - now_s)
            for one in self._sandboxes.values()
            if wanted.items() <= one.labels.items()
        )

    async def collect(self) -> tuple[str, ...]:
        now_s = asyncio.get_running_loop().time()
        expired = [one for one in self._sandboxes.values() if one.lease_ends_s < now_s]
        if "collect-takes-the-expired" in self.broken:
            return ()
        for one in expired:
            await one.close()
        return tuple(one.id for one in expired)

    def forget(self, handle: FakeHandle) -> None:
        """The sandbox is closed: nothing of it is left here."""
        if "close-leaves-nothing" in self.broken:
            return
        self._used = handle.machine.tree if "fresh-means-fresh" in self.broken else None
        self._sandboxes.pop(handle.id, None)
        self._requests = {request: made for request, made in self._requests.items() if made is not handle}
        if "snapshot-outlives-its-sandbox" in self.broken:
            self._snapshots = {name: kept for name, kept in self._snapshots.items() if kept.sandbox != handle.id}

    async def close(self) -> None:
        """End every sandbox: they lived in this object."""
        for one in tuple(self._sandboxes.values()):
            await one.close()
        self._sandboxes.clear()
        self._snapshots.clear()


class Memory(NamedTuple):
    """What a snapshot that carries processes has besides files."""

    left: list[Proc]
    random: tuple[Any, ...]
    boot_id: str
    at_ns: int


class Kept(NamedTuple):
    """A snapshot's files, whose they were, and until when they are kept."""

    tree: Tree
    sandbox: str
    snapshot: Snapshot
    ends_s: float
    memory: "Memory"

    def is_over(self) -> bool:
        return self.ends_s <= asyncio.get_running_loop().time()


def _check(options: Mapping[str, float | int | str]) -> None:
    for name, value in options.items():
        if name in ("seed", "broken", "snapshot"):
            continue
        assert not isinstance(value, str)
        if not 0 <= value < math.inf or (name in ("fail_create", "lose") and value > 1):
            wants = "a probability" if name in ("fail_create", "lose") else "not negative"
            raise SpecError(f"fake?{name}={value}: must be {wants}")
