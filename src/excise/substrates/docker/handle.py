"""One container as a Handle."""

from collections.abc import Callable
from functools import partial

from excise.adoption import require_adoption
from excise.guestless.actions import Actions
from excise.guestless.handle import ExecHandle
from excise.guestless.inside import Inside
from excise.guestless.process import GuestlessProcess
from excise.handles import Readiness, environment, finish, make_ready
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Snapshot
from excise.substrates.docker.changes import compared
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.lives import LEASE_S, Lives
from excise.substrates.docker.snapshots import Snapshots

# What the daemon says of a request no sandbox could carry out; everything else it says is its own trouble.
_CALLERS_FAULT = ("unable to find user", "unable to find group", "executable file not found", "no such file or directory")


class DockerHandle(ExecHandle[Actions]):
    """Actions by exec, each with a shell of ours around it."""

    def __init__(
        self,
        engine: Engine,
        id: str,
        container: str,
        *,
        address: str,
        capabilities: Capabilities,
        spec: Spec,
        snapshots: Snapshots,
        start: Snapshot | None = None,
        lease_s: float = LEASE_S,
        ready: bool = False,
        on_close: Callable[["DockerHandle"], None] | None = None,
    ) -> None:
        self.id = id
        """The sandbox's, which stays; the container's changes with every reset."""
        self._lives = Lives(snapshots, container, sandbox=id, spec=spec, start=start, lease_s=lease_s)
        self._engine = engine
        self._address = address
        self._capabilities = capabilities
        self._spec = spec
        self._on_close = on_close
        self._enter(container)
        self._readiness = Readiness(ready=ready)

    def _enter(self, container: str) -> None:
        """From now on actions are this container's."""
        self._inside = Inside(partial(self._engine.exec, container), root="0", callers_fault=_CALLERS_FAULT)
        self._actions = Actions(
            self._inside,
            variables=lambda action: environment({}, self._spec, action),
            half_closes=not self._engine.endpoint.encrypted,
            limited=self._limited,
        )

    @property
    def _limited(self) -> bool:
        return bool(self._spec.limits.asked() & {"memory_bytes", "pids"})

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readiness.turn:
            self._check_open()
            await self._readiness.reach(self, self._spec, lambda: (self._lives.left_to_do(), self._lives.first()))

    async def alive(self) -> None:
        self._check_open()
        await self._engine.alive(self._lives.container)

    async def adopt(self, spec: Spec) -> None:
        async with self._readiness.turn:
            self._check_open()
            require_adoption(self._spec, spec, self._capabilities, self._address)
            await self._lives.adopt(spec)
            self._spec = spec
            self._actions.limited = self._limited
            self._readiness.adopt()

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        self._check_open()
        return await self._lives.snapshot(None, keep_s=keep_s)

    async def reset(self, snapshot: Snapshot) -> None:
        """Another container under the same handle. Given up half-way, the sandbox is lost."""
        async with self._readiness.turn:
            self._check_open()
            made = await self._lives.prepare(snapshot)
            live = self._actions.let_go()
            await self._lives.turn(snapshot)
            for process in live:
                await process.settled()
            self._enter(made)
            try:
                await make_ready(self, self._lives.left_to_do(), self._lives.first())
            except BaseException:
                self._actions.let_go()
                raise

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        self._check_open()
        self._lives.refuse(since, self._address)
        return await compared(self._lives.snapshots, self, self._lives.container, contents=contents)

    # ---- life

    async def pause(self) -> None:
        self._check_open()
        await self._engine.pause(self._lives.container)

    async def resume(self) -> None:
        self._check_open()
        await self._engine.resume(self._lives.container)

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        await self._lives.renew(lease_s)

    async def close(self) -> None:
        await finish(self._remove(self._actions.let_go()))

    async def _remove(self, live: tuple[GuestlessProcess, ...]) -> None:
        await self._lives.remove()
        if self._on_close is not None:
            self._on_close(self)
        for process in live:
            await process.settled()
