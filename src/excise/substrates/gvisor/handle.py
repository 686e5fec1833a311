"""A container whose actions are `runsc exec`, each with a shell of ours around it."""

import asyncio
from collections.abc import Callable

from excise.action import Command, Exec
from excise.adoption import require_adoption
from excise.errors import CreateError, SandboxLost
from excise.guestless.actions import Actions
from excise.guestless.handle import ExecHandle
from excise.guestless.inside import Inside, Start
from excise.guestless.process import GuestlessProcess
from excise.handles import Readiness, environment, finish, make_ready
from excise.host.exec_wire import CommandWire
from excise.spec import Spec
from excise.storage.users import numbers
from excise.substrate import Capabilities, Change, Snapshot, unsupported
from excise.substrates.gvisor import bundle
from excise.substrates.gvisor.container import Container
from excise.substrates.gvisor.making import Gvisor

# What runsc says of a program that no sandbox could start; everything else it says is its own trouble.
_CALLERS_FAULT = ("no such file or directory", "permission denied", "executable file not found", "failed to load")
_MAKE_WORKDIR = 'test -d "$1" || { mkdir -p "$1" && chmod 777 "$1"; }'


class GvisorHandle(ExecHandle[Actions]):
    """A container, and after a reset another one."""

    def __init__(
        self,
        maker: "Gvisor[GvisorHandle]",
        container: Container,
        *,
        id: str,
        capabilities: Capabilities,
        snapshot: Snapshot | None,
        lease_s: float,
        on_close: Callable[["GvisorHandle"], None],
    ) -> None:
        self.id = id
        self._maker = maker
        self._address = maker.address
        self._capabilities = capabilities
        self._spec = container.start.spec
        self._begun_with = snapshot
        self._lease_s = lease_s
        self._on_close = on_close
        self._readiness = Readiness()
        self._stepped = snapshot is None and bool(self._spec.all_steps())
        """Steps are still to be run."""
        self._closing: asyncio.Task[None] | None = None
        self._enter(container)

    def _enter(self, container: Container) -> None:
        """From now on actions are this container's."""
        self._container = container
        self._cwd = container.start.workdir
        self._inside = Inside(self._wire, root="0", callers_fault=_CALLERS_FAULT, lost=self._lost)
        self._actions = Actions(self._inside, variables=self._variables)
        container.on_lost = self._lose

    def _lose(self, _: str) -> None:
        """Nothing in it can be judged any more: what is in flight is lost too."""
        self._actions.let_go()

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readiness.turn:
            self._check_open()
            await self._make_workdir()
            await self._readiness.reach(self, self._spec, lambda: (self._left_to_do(), None))
            if self._stepped and self._capabilities.diff:
                await self._container.mark()  # what the steps wrote is the start
            self._stepped = False

    def _left_to_do(self) -> Spec:
        return self._spec if self._begun_with is None else self._spec.with_steps(())

    async def _make_workdir(self) -> None:
        """What is mounted over the image, /tmp say, has no directory of the image's."""
        workdir = self._container.start.workdir
        if workdir.startswith(tuple(f"{path}/" for path in bundle.MEMORY)):
            self._cwd = "/"
            seen = await self._actions.run(Exec(("sh", "-c", _MAKE_WORKDIR, "sh", workdir), user="0", timeout_s=60))
            if not seen.ok:
                raise CreateError(f"the working directory {workdir} could not be made: {seen.text.strip()}")
        self._cwd = workdir

    async def alive(self) -> None:
        """Only a program that runs in it tells that it is there."""
        self._check_open()
        await self._container.answers()
        if not (seen := await self._actions.run(Exec(("true",)))).ok:
            raise SandboxLost(f"the sandbox runs no program any more: {seen.text.strip() or seen.end.value}")

    async def adopt(self, spec: Spec) -> None:
        async with self._readiness.turn:
            self._check_open()
            require_adoption(self._spec, spec, self._capabilities, self._address)
            self._spec = spec
            self._stepped = self._stepped or bool(spec.all_steps())
            self._readiness.adopt()

    # ---- actions

    def _check_open(self) -> None:
        if self._inside.closed:
            raise SandboxLost(self._container.lost or "the sandbox is closed")

    def _variables(self, action: Command) -> dict[str, str]:
        return environment(bundle.environment(self._container.start), self._spec, action)

    async def _wire(self, start: Start) -> CommandWire:
        """`runsc exec`, around the wrapping shell."""
        user = start.user or self._container.start.user or "0"
        ids = numbers(user, self._container.start.image.root)
        process = bundle.process(start.argv, {**bundle.environment(self._container.start), **start.env}, ids)
        process["cwd"] = self._cwd
        return CommandWire(await self._container.begin(process, Exec(start.argv)))

    async def _lost(self, reason: str) -> SandboxLost:
        return SandboxLost(f"{reason}; runsc's last words: {self._container.last_words()}")

    # ---- states

    def _require(self, verb: str) -> None:
        if self._capabilities.snapshot is None:
            raise unsupported(self._address, verb)

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        self._require("snapshot")
        self._check_open()
        parent = None if self._begun_with is None else self._begun_with.id
        return await self._maker.states.take(
            self._container, spec=self._spec, parent=parent, lease_s=self._lease_s, keep_s=keep_s
        )

    async def reset(self, snapshot: Snapshot) -> None:
        """Another container under the same handle. Given up half-way, the sandbox is lost."""
        self._require("reset")
        async with self._readiness.turn:
            self._check_open()
            made = await self._maker.another(self._spec, snapshot, self._lease_s)
            try:
                await made.run()
            except BaseException:
                await finish(made.close())
                raise
            live, before = self._actions.let_go(), self._container
            self._enter(made)
            self._begun_with, self._stepped = snapshot, False
            try:
                await finish(_ended(before, live))
                await self._make_workdir()
                await make_ready(self, self._left_to_do())
            except BaseException:
                self._actions.let_go()
                raise

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        self._require("diff")
        self._check_open()
        base = None if since is None else self._maker.states.upper(since, self._container.start.image.key)
        return await self._container.changes(base, contents=contents)

    # ---- life

    async def pause(self) -> None:
        self._check_open()
        await self._container.verb("pause")

    async def resume(self) -> None:
        self._check_open()
        await self._container.verb("resume")

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        await self._container.renew(lease_s)
        self._lease_s = lease_s

    async def close(self) -> None:
        live = self._actions.let_go()
        if self._closing is None:
            self._on_close(self)
            self._closing = asyncio.ensure_future(_ended(self._container, live))
        await finish(asyncio.shield(self._closing))


async def _ended(container: Container, live: tuple[GuestlessProcess, ...]) -> None:
    await container.close()
    for process in live:
        await process.settled()
