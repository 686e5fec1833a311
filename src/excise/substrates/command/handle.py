"""A sandbox that is reached by running a command on this machine for each action."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from excise.action import Command, Exec
from excise.adoption import require_adoption
from excise.errors import CreateError, SandboxLost, SubstrateError
from excise.guestless.actions import Actions
from excise.guestless.handle import ExecHandle
from excise.guestless.inside import Inside, Start
from excise.handles import Readiness, environment, finish
from excise.host.directories import remove
from excise.host.exec_wire import CommandWire
from excise.host.handle import HostHandle
from excise.host.process import HostProcess
from excise.spec import Spec
from excise.storage.users import numbers
from excise.substrates.command.direct import DirectActions
from excise.substrates.command.recipe import Argv, Filling, Recipe

_HALF_WAY_S = 10.0
_EXEC = 'exec "$0" "$@"'
_EXEC_MERGED = 'exec "$0" "$@" 2>&1'


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox's recipe is filled with, apart from the action at hand."""

    one: Mapping[str, str]
    binds: tuple[Mapping[str, str], ...]
    workdir: str
    image_env: Mapping[str, str]
    user: str = ""
    """Whom actions run as, unless they say; empty: whoever the tool makes them."""
    root: Path | None = None
    """The image's files, to look users up in."""


class CommandHandle(ExecHandle[Actions | DirectActions]):
    """Actions as command lines; files, tar streams and the killing of strays through the sandbox's own shell."""

    def __init__(
        self,
        *,
        id: str,
        address: str,
        recipe: Recipe,
        terms: Terms,
        spec: Spec,
        host: HostHandle,
        another_host: Callable[[], Awaitable[HostHandle]],
        on_close: Callable[["CommandHandle"], None],
    ) -> None:
        self.id = id
        self._address = address
        self._recipe = recipe
        self._capabilities = recipe.capabilities
        self._terms = terms
        self._spec = spec
        self._host = host
        self._another_host = another_host
        self._on_close = on_close
        self._made = False
        self._readiness = Readiness()
        self._closing: asyncio.Task[None] | None = None
        self._actions = (
            DirectActions(self._begin, depth=recipe.depth)
            if recipe.kill == "tree"
            else Actions(Inside(self._wire, root="0" if recipe.capabilities.users else ""), variables=self._variables)
        )

    async def create(self) -> None:
        """Run the recipe's create commands; what they leave running is the sandbox."""
        creating = asyncio.ensure_future(self._create())
        try:
            await asyncio.shield(creating)
        except asyncio.CancelledError:
            # A tool killed half-way leaves what its close command does not know of, such as a cgroup.
            await finish(asyncio.wait([creating], timeout=_HALF_WAY_S))
            creating.cancel()
            await finish(asyncio.wait([creating]))
            raise

    async def _create(self) -> None:
        for command in self._recipe.create:
            if said := await self._failure(self._host, command):
                raise CreateError(f"{self._recipe.name}: its create command failed: {said}")
        self._made = True

    async def _failure(self, host: HostHandle, command: Argv) -> str:
        """Run one of the recipe's own commands; what it said if it failed, else nothing."""
        argv = self._filling({}).argv(command)
        seen = await host.run(Exec(tuple(argv), env=_host_environment(), timeout_s=120, merge=True))
        return "" if seen.ok else seen.text.strip() or seen.end.value

    async def ready(self) -> None:
        async with self._readiness.turn:
            self._check_open()
            await self._readiness.reach(self, self._spec)

    async def alive(self) -> None:
        """Where create commands made something, only a program that runs in it tells that it is there."""
        self._check_open()
        await self._host.alive()
        if self._recipe.create and not (seen := await self._actions.run(Exec(("true",)))).ok:
            raise SandboxLost(f"the sandbox runs no program any more: {seen.text.strip() or seen.end.value}")

    async def adopt(self, spec: Spec) -> None:
        async with self._readiness.turn:
            self._check_open()
            require_adoption(self._spec, spec, self._capabilities, self._address)
            self._spec = spec
            self._readiness.adopt()

    # ---- actions

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxLost("this sandbox is closed")

    def _variables(self, action: Command) -> dict[str, str]:
        return environment(self._terms.image_env, self._spec, action)

    async def _begin(self, action: Command, interactive: bool) -> HostProcess:
        """The recipe's exec command, around an action's program."""
        argv = action.argv if isinstance(action, Exec) else ("/bin/sh", "-c", action.script)
        cwd = str(PurePosixPath(self._terms.workdir) / (action.cwd or "."))
        # Behind a shell, because tools differ in what they say of a program that is not there, and some copy both
        # streams by themselves and so lose their order.
        inner = ("/bin/sh", "-c", _EXEC_MERGED if action.merge else _EXEC, *argv)
        start = Start(argv=inner, env=self._variables(action), user=action.user or "")
        return await self._command(start, cwd, action, interactive=interactive)

    async def _command(self, start: Start, cwd: str, action: Command, *, interactive: bool) -> HostProcess:
        inherited = self._recipe.environment == "inherited"
        outer = Exec(
            tuple(self._filling(start.env, cwd, start.user or self._terms.user).argv(self._recipe.exec, start.argv)),
            env=start.env if inherited else _host_environment(),
            stdin=action.stdin,
            timeout_s=action.timeout_s,
            merge=action.merge,
            keep=action.keep,
        )
        process = await self._host.begin(outer, interactive=interactive)
        assert isinstance(process, HostProcess)
        return process

    async def _wire(self, start: Start) -> CommandWire:
        """The recipe's exec command, around the wrapping shell."""
        process = await self._command(start, self._terms.workdir, Exec(start.argv), interactive=True)
        return CommandWire(process)

    def _filling(self, variables: Mapping[str, str], cwd: str = "", user: str = "") -> Filling:
        many = {
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "binds": self._terms.binds,
            "user": [self._user(user)] if user else [],
        }
        return Filling(self._recipe, {**self._terms.one, "cwd": cwd}, many)

    def _user(self, user: str) -> dict[str, str]:
        """Numbers where the image is ours to look into; else the tool has to know the name."""
        if self._terms.root is None:
            return {"user": user, "uid": user, "gid": user}
        uid, gid = numbers(user, self._terms.root)
        return {"user": user, "uid": str(uid), "gid": str(gid)}

    # ---- life

    async def renew(self, lease_s: float) -> None:
        await self._host.renew(lease_s)

    async def close(self) -> None:
        """Run the close commands and end every process that is left."""
        if self._closing is None:
            self._on_close(self)
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        under_way = self._actions.let_go()
        try:
            failure = await self._run_close(self._host)
        except SandboxLost:  # its lease ended, or it was killed; what the create commands made may still be there
            host = await self._another_host()
            try:
                failure = await self._run_close(host)
            finally:
                await host.close()
        finally:
            await self._host.close()
        for process in under_way:
            await process.settled()
        if failure and self._made:
            # Its directory stays, so that gc can try again when we are gone.
            raise SubstrateError(f"{self._recipe.name}: the close command of {self.id} failed: {failure}")
        await asyncio.to_thread(remove, self._terms.one["state"])

    async def _run_close(self, host: HostHandle) -> str:
        """Every close command, whatever became of the others; what those that failed said."""
        said = [await self._failure(host, command) for command in self._recipe.close]
        return "; ".join(filter(None, said))


def _host_environment() -> dict[str, str]:
    """What a command on the host needs of its caller's variables, and no more."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "XDG_RUNTIME_DIR", "LANG") if name in os.environ}
