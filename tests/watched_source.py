"""A source that keeps its own books of what a pool does with it, and hangs, fails or dies when it is told to.

Whatever a pool says of itself is held against these: a sandbox counts from before its create to after its close.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from excise.action import Write
from excise.errors import CreateError, SandboxLost
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Listed, Snapshot
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.files import Directory, File, Link, Node, Tree
from excise.substrates.fake.handle import FakeHandle
from excise.substrates.fake.virtual_time import VirtualLoop

FLOOR_BYTES = 1 << 20
IN_A_ROLLOUT: contextvars.ContextVar[bool] = contextvars.ContextVar("in_a_rollout", default=False)
"""Set by who claims: what the pool does by itself must not be able to see it."""


class CheckedLoop(VirtualLoop):
    """Looks at the pool whenever something has happened, and not only when nothing happens any more."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Callable[[], None] = lambda: None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.check()


class WatchedHandle:
    """A pretend sandbox behind a gate; what it went through is noted."""

    def __init__(self, source: "WatchedSource", inner: FakeHandle) -> None:
        self.inner = inner
        self.source = source
        self.users: set[str] = set()
        """Owners of rollouts that had it."""
        self.secrets: set[str] = set()
        """Values that its steps, or those of the snapshot it is of, were shown."""
        self.verbs = 0
        """Under way in it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def id(self) -> str:
        return self.inner.id

    def saw(self, spec: Spec) -> None:
        if spec.all_steps():
            self.secrets |= {secret.reveal() for secret in spec.secrets.values()}

    async def ready(self) -> None:
        await self.source.pass_gate("ready")
        self.saw(self.inner.spec)
        await self.inner.ready()

    async def alive(self) -> None:
        await self.source.pass_gate("alive")
        await self.inner.alive()

    async def adopt(self, spec: Spec) -> None:
        await self.source.pass_gate("adopt")
        await self.inner.adopt(spec)

    async def renew(self, lease_s: float) -> None:
        await self.source.pass_gate("renew")
        await self.inner.renew(lease_s)

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        await self.source.pass_gate("snapshot")
        taken = await self.inner.snapshot(keep_s=keep_s)
        self.source.provenance[taken.id] = (frozenset(self.users), frozenset(self.secrets))
        if IN_A_ROLLOUT.get():
            self.source.users_snapshots.add(taken.id)
        return taken

    async def reset(self, snapshot: Snapshot) -> None:
        await self.source.pass_gate("reset")
        await self.inner.reset(snapshot)
        if self.source.faults.get("reset") == "lies":
            await self.inner.run(Write("left", b"of the rollout before"))

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        await self.source.pass_gate("diff")
        self.source.background("diff")
        return await self.inner.diff(since, contents=contents)

    async def close(self) -> None:
        """One that fails has ended it all the same: else it would live, and gc would have it."""
        try:
            await self.source.pass_gate("close")
        finally:
            await self.inner.close()
            self.source.living.pop(self.id, None)


class WatchedSource:
    """`faults`: which verbs hang, fail as a substrate does, break as nobody expects ("odd") or tell lies ("lies")."""

    def __init__(self, **latencies: float) -> None:
        self.fake = FakeSubstrate(**latencies)  # type: ignore[arg-type]
        self.address = self.fake.address
        self.living: dict[str, WatchedHandle] = {}
        self.making = 0
        self.faults: dict[str, str] = {}
        self.recovered = asyncio.Event()
        self.provenance: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        """By snapshot: who had used what it is of, and which secrets its steps saw."""
        self.users_snapshots: set[str] = set()
        self.ran: dict[str, int] = {}
        """How often each step said that it runs."""
        self.seen_by_rollouts: list[str] = []
        self.creates = 0
        self.closed = False
        self.fake.install("ran", self._ran)

    async def _ran(self, proc: Any, argv: list[str]) -> int:
        self.ran[argv[1]] = self.ran.get(argv[1], 0) + 1
        return 0

    # ---- faults

    async def pass_gate(self, verb: str) -> None:
        """Suspends at least once, so that there is an await to be cancelled at."""
        await asyncio.sleep(0)
        while (fault := self.faults.get(verb)) == "hangs":
            await self.recovered.wait()
        if fault == "fails":
            raise CreateError(f"{verb} failed") if verb == "create" else SandboxLost(f"{verb} failed")
        if fault == "odd":
            raise OSError(f"{verb} broke as nobody expects")

    def break_(self, verb: str, fault: str) -> None:
        self.faults[verb] = fault
        if self.recovered.is_set():
            self.recovered = asyncio.Event()

    def recover(self) -> None:
        self.faults.clear()
        self.recovered.set()

    async def kill(self, id: str) -> None:
        """It dies, and nobody is told."""
        self.living[id].inner._life.end("the pretend machine was killed")

    async def stop(self, id: str) -> None:
        """It stands still, and answers nothing."""
        self.living[id].inner.machine.pause()

    def background(self, what: str) -> None:
        if IN_A_ROLLOUT.get():
            self.seen_by_rollouts.append(what)

    # ---- the seam

    async def probe(self) -> Capabilities:
        return await self.fake.probe()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> Any:  # a WatchedHandle, which passes on the rest by name
        if labels.keys() == {"excise-pool"}:
            self.background("create")
        self.making += 1
        self.creates += 1
        try:
            async with asyncio.timeout(deadline_s):
                await self.pass_gate("create")
            made = await self.fake.create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)
            handle = self.living[made.id] = WatchedHandle(self, made)
        except TimeoutError:
            raise CreateError(f"{self.address} made no sandbox in {deadline_s:g} s") from None
        finally:
            self.making -= 1
        if isinstance(start, Snapshot):
            users, secrets = self.provenance[start.id]
            handle.users, handle.secrets = set(users), set(secrets)
        return handle

    async def attach(self, id: str) -> Any:  # a WatchedHandle, which passes on the rest by name
        await self.fake.attach(id)
        return self.living[id]

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return await self.fake.list(labels)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await self.fake.snapshots()

    async def discard(self, snapshot: Snapshot) -> None:
        try:
            await self.pass_gate("discard")
        finally:
            await self.fake.discard(snapshot)
            self.users_snapshots.discard(snapshot.id)

    async def collect(self) -> tuple[str, ...]:
        return await self.fake.collect()

    async def close(self) -> None:
        self.closed = True

    # ---- the books

    @property
    def count(self) -> int:
        return len(self.living) + self.making

    def memory_bytes(self) -> int:
        """What the cap must hold at the least: a floor for each sandbox and each template."""
        templates = self.fake._snapshots.keys() - self.users_snapshots
        return (self.count + len(templates)) * FLOOR_BYTES


def contents(tree: Tree) -> dict[str, tuple[str, int, bytes]]:
    """Every file of a pretend machine, but for its times."""
    return dict(_below("", tree.root))


def _below(path: str, directory: Directory) -> Iterator[tuple[str, tuple[str, int, bytes]]]:
    for name, node in sorted(directory.entries.items()):
        yield f"{path}/{name}", (type(node).__name__, node.mode, _data(node))
        if isinstance(node, Directory):
            yield from _below(f"{path}/{name}", node)


def _data(node: Node) -> bytes:
    if isinstance(node, Link):
        return node.target.encode()
    return bytes(node.data) if isinstance(node, File) else b""
