"""A namespace sandbox as a Handle: what a guest can do, states, a lease, and a way out that may be another once it is built."""

import asyncio
import contextvars
from typing import Any

from excise.guest.handle import GuestHandle
from excise.handles import make_ready, start_up
from excise.network.client import Phases, phases
from excise.network.policy import Policy
from excise.session_state import give_sessions, read_sessions
from excise.spec import Spec
from excise.substrate import Change, Snapshot, unsupported
from excise.substrates.namespace.limiting import Limiting
from excise.substrates.namespace.request import Answer
from excise.substrates.namespace.roots import Roots, refusal
from excise.substrates.namespace.snapshots import Kept
from excise.substrates.namespace.states import Shared, Start, States
from excise.substrates.namespace.way_out import WayOut


class NamespaceHandle(GuestHandle):
    """Ends with the process that made it, or with its lease, whichever is first."""

    def __init__(
        self,
        *args: Any,
        lease_s: float,
        start: Start,
        roots: Roots,
        shared: Shared,
        way: WayOut,
        limiting: Limiting,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._loop = asyncio.get_running_loop()
        self._lease_s = lease_s
        self._lease = self._expires_in(lease_s)
        self._states = States(self.link, start, roots, shared)
        self._way, self._limiting = way, limiting
        self._once_built: Policy | None = None

    async def open_door(self, listener: int, network: Phases, *, keep: bool) -> None:
        """Serve `listener`, which is ours no more: by the first policy while the steps run, then by the second."""
        await self._way.begin(listener, network.build, keep=keep)
        self._once_built = network.run

    # ---- another spec's

    @property
    def _made_of(self) -> Spec:
        return self._states.start.spec

    def _remain(self, spec: Spec) -> None:
        super()._remain(spec)
        self._states.start = self._states.start._replace(spec=spec)

    def _require_fit(self, spec: Spec) -> None:
        self._limiting.require(spec.limits)
        self._way.require(*phases(spec, built=not spec.all_steps()))

    async def _take_on(self, spec: Spec) -> None:
        network = phases(spec, built=not spec.all_steps())
        start = self._states.start
        await self._become(*network.dressed(spec, start.image.env))
        self._states.start, self._once_built = start._replace(spec=spec), network.run
        await self._limiting.change(spec.limits)
        await self._way.change(network.build)

    async def _make_ready(self) -> None:
        start = self._states.start
        if self._adopted:
            await super()._make_ready()
            return
        if start.snapshot is None and not start.built:
            await super()._make_ready()
            return
        await self._states.prove(asked=False)
        # Its steps are in its files.
        await make_ready(self, self._spec.with_steps(()))
        if start.snapshot is not None:
            await give_sessions(self, start.snapshot.sessions)

    async def open_upper(self) -> int:
        """The directory with what was written in the sandbox: a descriptor, the caller's, which may outlive it."""
        return await self._states.roots.open_upper()

    async def _built(self) -> None:
        if self._capabilities.snapshot is not None and self._spec.all_steps() and not self._states.start.is_step:
            await self._states.begin_here()
        if self._once_built is not None:
            await self._way.change(self._once_built)

    # ---- states

    def _require(self, verb: str) -> None:
        if self._capabilities.snapshot is None:  # a kernel that is too old
            raise unsupported(self._address, verb)

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        self._require("snapshot")
        async with self._readying:
            self.link.check()
            sessions = await read_sessions(self, self.sessions, self.base, self._spec)
            return await self._states.take(sessions, self._lease_s, keep_s)

    async def reset(self, snapshot: Snapshot, *, prove: bool = False) -> None:
        """Another life, in a root over the snapshot's layers. Given up half-way, the sandbox is lost.

        `prove`: that it is the state it was, by the digest of every layer; it takes as long as reading them.
        """
        self._require("reset")
        async with self._readying:
            self.link.check()
            kept = await self._states.find(snapshot)
            try:
                await self._turn(kept)
                await self._states.prove(asked=prove)
                await start_up(self, self._spec)
                if kept.snapshot.sessions:
                    await give_sessions(self, kept.snapshot.sessions)
            except BaseException as error:
                self.link.fail(f"its reset was given up half-way ({type(error).__name__}): close it and make another one")
                raise
            finally:
                kept.release()

    async def _turn(self, kept: Kept) -> None:
        offered = await self._states.roots.change(kept.stack.layers, kept.image)
        offered.add_done_callback(self._judge)
        self._states.began(kept)
        self.greet(self.link, root=True)
        await self.link.greeted()

    def _judge(self, offered: asyncio.Future[Answer]) -> None:
        """A guest that is not given its root would wait for it for ever."""
        if (reason := refusal(offered)) is not None:
            self.link.fail(reason)

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        self._require("diff")
        self.link.check()
        mounted = tuple(mount.target.rstrip("/") for mount in self._spec.mounts)
        shown = tuple(target for _, target in self._states.start.image.binds)
        return await self._states.diff(since, contents=contents, mounted=(*mounted, *shown))

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
        await self._way.close()

    async def leave(self) -> None:
        """After it was removed."""
        await self._states.leave()
