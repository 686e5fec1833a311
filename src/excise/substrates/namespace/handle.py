"""A namespace sandbox as a Handle: what a guest can do, states, a lease, and a way out that may be another once it is built."""

import asyncio
import contextvars
from typing import Any, NamedTuple

import msgspec

from excise.errors import SpecError
from excise.guest.handle import GuestHandle
from excise.handles import make_ready, start_up
from excise.network.client import Door, Proxies
from excise.network.policy import Policy
from excise.session_state import give_sessions, read_sessions
from excise.spec import Spec
from excise.storage.background import to_end
from excise.storage.image import Image
from excise.storage.storekeeper import Storekeeper
from excise.substrate import Snapshot
from excise.substrates.namespace.layers import Layer
from excise.substrates.namespace.request import Answer
from excise.substrates.namespace.roots import Roots, refusal
from excise.substrates.namespace.snapshots import Kept, Snapshots


class Start(NamedTuple):
    """What a sandbox's present life began with."""

    spec: Spec
    """As it was asked for."""
    image: Image
    snapshot: Snapshot | None = None
    built: bool = False
    """Whether the spec's steps are in the image's layers."""


class NamespaceHandle(GuestHandle):
    """Ends with the process that made it, or with its lease, whichever is first."""

    def __init__(
        self,
        *args: Any,
        lease_s: float,
        start: Start,
        roots: Roots,
        snapshots: Snapshots,
        storekeeper: Storekeeper,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._loop = asyncio.get_running_loop()
        self._lease_s = lease_s
        self._lease = self._expires_in(lease_s)
        self._start = start
        self._roots = roots
        self._snapshots = snapshots
        self._storekeeper = storekeeper
        self._door: Door | None = None
        self._once_built: Policy | None = None

    async def open_door(self, proxies: Proxies, listener: int, phases: tuple[Policy, Policy]) -> None:
        """Serve `listener`, which is ours no more: by the first policy while the steps run, then by the second."""
        build, run = phases
        self._door = await proxies.serve(listener, build, self.link.fail)
        self._once_built = run if run != build else None

    async def _make_ready(self) -> None:
        began = self._start.snapshot
        if began is None and not self._start.built:
            await super()._make_ready()
            return
        # Its steps are in its files.
        await make_ready(self, msgspec.structs.replace(self._spec, repo=None, deps=None, steps=()))
        if began is not None:
            await give_sessions(self, began.sessions)

    async def open_upper(self) -> int:
        """The directory with what was written in the sandbox: a descriptor, the caller's, which may outlive it."""
        return await self._roots.open_upper()

    async def _built(self) -> None:
        if self._door is None or self._once_built is None:
            return
        if self._once_built.mode == "none":
            await self._door.close()
        else:
            await self._door.change(self._once_built)

    # ---- states

    async def snapshot(self) -> Snapshot:
        async with self._readying:
            self.link.check()
            sessions = await read_sessions(self, self.sessions, self.base, self._spec)
            # To its end: an upper that was sealed is under the sandbox, whoever gave up waiting for it.
            copied = None if not self.sessions and await to_end(self._seal()) is not None else await self._copy()
            layers = self._roots.stack.layers if copied is None else (copied, *self._roots.stack.layers)
            try:
                return self._snapshots.keep(
                    layers,
                    self._start.image,
                    self._start.spec,
                    parent=None if self._start.snapshot is None else self._start.snapshot.id,
                    lease_s=self._lease_s,
                    sessions=sessions,
                )
            finally:
                if copied is not None:
                    copied.release()

    async def _seal(self) -> Layer | None:
        try:
            return await self._roots.seal()
        except Exception as error:
            self.link.fail(str(error))
            raise

    async def _copy(self) -> Layer:
        """Something lives: it stands still while what is written is copied."""
        try:
            await self.link.freeze()
            return await self._roots.copy(self._storekeeper)
        finally:
            self.link.thaw()

    async def reset(self, snapshot: Snapshot) -> None:
        """Another life, in a root over the snapshot's layers. Given up half-way, the sandbox is lost."""
        async with self._readying:
            self.link.check()
            kept = self._snapshots.find(snapshot)
            if kept.snapshot.spec != self._start.spec:
                raise SpecError("a sandbox goes back to states of its own spec only: make another one of this snapshot")
            try:
                await self._turn(kept)
                await start_up(self, self._spec)
                await give_sessions(self, snapshot.sessions)
            except BaseException as error:
                self.link.fail(f"its reset was given up half-way ({type(error).__name__}): close it and make another one")
                raise

    async def _turn(self, kept: Kept) -> None:
        offered = await self._roots.change(kept.stack.layers)
        offered.add_done_callback(self._judge)
        self._start = self._start._replace(snapshot=kept.snapshot)
        self.greet(self.link, root=True)
        await self.link.greeted()

    def _judge(self, offered: asyncio.Future[Answer]) -> None:
        """A guest that is not given its root would wait for it for ever."""
        if (reason := refusal(offered)) is not None:
            self.link.fail(reason)

    # ---- life

    def _expires_in(self, lease_s: float) -> asyncio.TimerHandle:
        # In a context of its own: what the end of a lease does is no part of the rollout that asked for it.
        return self._loop.call_later(lease_s, self._expire, context=contextvars.Context())

    def _expire(self) -> None:
        self.link.fail("the sandbox's lease ran out: renew it in time, or ask for a longer one")
        self._expiring = self._loop.create_task(self.close())

    async def renew(self, lease_s: float) -> None:
        await super().renew(lease_s)
        self._lease.cancel()
        self._lease_s = lease_s
        self._lease = self._expires_in(lease_s)

    async def close(self) -> None:
        self._lease.cancel()
        await super().close()

    async def shut_door(self) -> None:
        """Before the sandbox is removed: who is connected through it is cut off."""
        if self._door is not None:
            await self._door.close()

    def leave(self) -> None:
        """After the sandbox was removed: its layers are nobody's of it any more."""
        self._roots.stack.release()
