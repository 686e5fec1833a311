"""A claimed sandbox: its source's handle, until it is closed and the pool has it back."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Protocol

import msgspec

from excise.action import Action, Command, Observation
from excise.errors import SandboxLost
from excise.handles import finish
from excise.spec import Spec
from excise.substrate import Change, Connection, Handle, Process, Snapshot
from excise.substrates.pool.claim import Claim
from excise.substrates.pool.slots import Held


class Lender(Protocol):
    """What a claimed sandbox asks of its pool."""

    @property
    def address(self) -> str: ...
    def to_source(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot of the pool's as its source knows it."""
        ...

    async def make_ready(self, handle: "PoolHandle") -> None: ...
    async def take_back(self, handle: "PoolHandle") -> None: ...


class PoolHandle:
    """Every verb is the source's; what becomes of it at its end, the pool decides."""

    def __init__(self, lender: Lender, held: Held, spec: Spec, labels: Mapping[str, str], claim: Claim | None) -> None:
        """`claim`: how it came here; None for one that was made of a snapshot of the user's."""
        assert held.handle is not None
        self.held = held
        self.spec = spec
        self.labels = labels
        self.claim = claim
        self.request_id = ""
        self._lender = lender
        self._handle: Handle = held.handle
        self._id = held.handle.id
        self._is_ready = False
        self._readying: asyncio.Lock | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    def _live(self) -> Handle:
        if self._closing is not None:
            raise SandboxLost("the sandbox was closed, and is the pool's again")
        return self._handle

    async def ready(self) -> None:
        self._live()
        if self._is_ready:
            return
        if self._readying is None:
            self._readying = asyncio.Lock()
        async with self._readying:
            if not self._is_ready:
                await self._lender.make_ready(self)
                self._is_ready = True

    def become(self, held: Held) -> None:
        """Another sandbox in place of one that did not get ready."""
        assert held.handle is not None
        self.held, self._handle, self._id = held, held.handle, held.handle.id

    async def alive(self) -> None:
        await self._live().alive()

    async def adopt(self, spec: Spec) -> None:
        """It is no more what was claimed: a step that fails now is not tried in another, and it is closed after use."""
        await self._live().adopt(spec)
        self.spec, self.claim, self._is_ready = spec, None, False

    # ---- what is done in it

    async def run(self, action: Action) -> Observation:
        return await self._live().run(action)

    async def start(self, action: Command) -> Process:
        return await self._live().start(action)

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._live().upload(path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return self._live().download(path)

    async def connect(self, port: int) -> Connection:
        return await self._live().connect(port)

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        """Of this pool, and of the whole spec: what the sandbox itself still had to do when it was claimed is done."""
        taken = await self._live().snapshot(keep_s=keep_s)
        return msgspec.structs.replace(taken, address=self._lender.address, spec=self.spec)

    async def reset(self, snapshot: Snapshot) -> None:
        await self._live().reset(self._lender.to_source(snapshot))

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        return await self._live().diff(None if since is None else self._lender.to_source(since), contents=contents)

    # ---- life

    async def pause(self) -> None:
        await self._live().pause()

    async def resume(self) -> None:
        await self._live().resume()

    async def renew(self, lease_s: float) -> None:
        await self._live().renew(lease_s)

    async def close(self) -> None:
        """What ran in it is dead on return; whether it is shelved or closed goes on beside. Carried to its end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._lender.take_back(self))
        await finish(asyncio.shield(self._closing))
