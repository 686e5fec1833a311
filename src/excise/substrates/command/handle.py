"""A sandbox that is reached by running a command on this machine for each action."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from pathlib import PurePosixPath

import msgspec

from excise.action import Action, Batch, Command, End, Event, Exec, Exit, Observation, Shell
from excise.errors import CreateError, SandboxLost
from excise.guestless.files import run_file
from excise.guestless.kill import kill
from excise.guestless.tar import download, upload
from excise.guestless.wrapper import MARKER
from excise.handles import environment, finish, make_ready, observe, run_batch
from excise.host.handle import HostHandle
from excise.host.process import HostProcess
from excise.spec import Spec
from excise.substrate import Connection, Process, Snapshot, unsupported
from excise.substrates.command.recipe import Argv, Filling, Recipe


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox's recipe is filled with, apart from the action at hand."""

    one: Mapping[str, str]
    binds: tuple[Mapping[str, str], ...]
    workdir: str
    image_env: Mapping[str, str]


class CommandProcess:
    """A `Process` whose program runs behind the command that was started for it."""

    def __init__(
        self,
        process: HostProcess,
        action: Command,
        recipe: Recipe,
        *,
        end_inside: Callable[[], Awaitable[None]],
        closing: Callable[[], bool],
    ) -> None:
        self.id = process.id
        self._process = process
        self._action = action
        self._recipe = recipe
        self._end_inside = end_inside
        self._closing = closing
        self._ended: Observation | None = None

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._process.events():
            if isinstance(event, Exit):
                self._ended = await self._outcome(event.observation)
                yield Exit(self._ended)
            else:
                yield event

    async def _outcome(self, seen: Observation) -> Observation:
        """What our runner measured is the command around the program, not the program: it is left out."""
        if self._closing():
            raise SandboxLost("the sandbox was closed under this action")
        left = self._recipe.capabilities.background and self._process.pipes_held
        if seen.end is End.TIMED_OUT:
            await self._end_inside()
            left = False
        killed = seen.signal is not None
        return msgspec.structs.replace(
            seen,
            end=End.EXITED if killed else seen.end,
            exit_code=128 + (seen.signal or 0) if killed else seen.exit_code,
            signal=None,
            guest_ns=None,
            cpu_ns=None,
            max_rss_bytes=None,
            still_running=left,
        )

    async def wait(self) -> Observation:
        return self._ended if self._ended is not None else await observe(self, self._action.keep)

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        await self._process.resize(rows, columns)

    async def signal(self, number: int) -> None:
        await self._process.signal(number, self._recipe.depth)

    async def kill(self) -> None:
        await self._process.kill()
        await self._end_inside()

    def release(self) -> None:
        self._process.release()


class CommandHandle:
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
        on_close: Callable[["CommandHandle"], None],
    ) -> None:
        self.id = id
        self._address = address
        self._recipe = recipe
        self._terms = terms
        self._spec = spec
        self._host = host
        self._on_close = on_close
        self._closing: asyncio.Task[None] | None = None

    async def create(self) -> None:
        """Run the recipe's create commands; what they leave running is the sandbox."""
        for command in self._recipe.create:
            await self._must(command, "create")

    async def _must(self, command: Argv, verb: str) -> None:
        argv = self._filling({}).argv(command)
        seen = await self._host.run(Exec(tuple(argv), env=_host_environment(), timeout_s=120, merge=True))
        if not seen.ok:
            raise CreateError(f"{self._recipe.name}: its {verb} command failed: {seen.text.strip() or seen.end.value}")

    async def ready(self) -> None:
        await make_ready(self, self._spec)

    # ---- actions

    async def run(self, action: Action) -> Observation:
        match action:
            case Batch():
                return await run_batch(self, action)
            case Exec() | Shell():
                return await self._to_its_end(await self._start(action, interactive=False))
            case _:
                return await run_file(self.run, action)

    async def _to_its_end(self, process: CommandProcess) -> Observation:
        try:
            return await process.wait()
        except BaseException:
            await finish(process.kill())
            raise
        finally:
            process.release()

    async def start(self, action: Command) -> Process:
        return await self._start(action, interactive=True)

    async def _start(self, action: Command, *, interactive: bool) -> CommandProcess:
        self._refuse(action)
        if self._closing is not None:
            raise SandboxLost("this sandbox is closed")
        variables = environment(self._terms.image_env, self._spec, action)
        nonce = secrets.token_hex(16)
        if self._recipe.kill == "marker":
            variables[MARKER] = nonce
        inner = action.argv if isinstance(action, Exec) else ("/bin/sh", "-c", action.script)
        cwd = str(PurePosixPath(self._terms.workdir) / (action.cwd or "."))
        argv = self._filling(variables, cwd).argv(self._recipe.exec, inner)
        inherited = self._recipe.environment == "inherited"
        outer = msgspec.structs.replace(
            Exec(tuple(argv)),
            env=variables if inherited else _host_environment(),
            stdin=action.stdin,
            timeout_s=action.timeout_s,
            merge=action.merge,
            keep=action.keep,
        )
        since_ticks = _ticks()
        process = await self._host.begin(outer, interactive=interactive)
        assert isinstance(process, HostProcess)
        return CommandProcess(
            process,
            action,
            self._recipe,
            end_inside=lambda: self._end_inside(nonce, since_ticks),
            closing=lambda: self._closing is not None,
        )

    def _refuse(self, action: Command) -> None:
        if action.user is not None:
            raise unsupported(self._address, "user=")
        if action.pty is not None:
            raise unsupported(self._address, "pty=")
        if isinstance(action, Shell) and action.session is not None:
            raise unsupported(self._address, "session=")

    async def _end_inside(self, nonce: str, since_ticks: int) -> None:
        """Kill what the command left behind in the sandbox, where ending the command is not enough."""
        if self._recipe.kill == "marker" and self._closing is None:
            await kill(self.run, nonce, since_ticks=since_ticks, alone=False)

    def _filling(self, variables: Mapping[str, str], cwd: str = "") -> Filling:
        named = [{"name": name, "value": value} for name, value in variables.items()]
        return Filling(self._recipe, {**self._terms.one, "cwd": cwd}, {"env": named, "binds": self._terms.binds})

    # ---- streams of files

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await upload(self, path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return download(self, path)

    # ---- what command lines do not have

    async def connect(self, port: int) -> Connection:
        raise unsupported(self._address, f"connect({port})")

    async def snapshot(self) -> Snapshot:
        raise unsupported(self._address, "snapshot")

    async def reset(self, snapshot: Snapshot) -> None:
        raise unsupported(self._address, "reset")

    async def pause(self) -> None:
        raise unsupported(self._address, "pause")

    async def resume(self) -> None:
        raise unsupported(self._address, "resume")

    # ---- life

    async def renew(self, lease_s: float) -> None:
        await self._host.renew(lease_s)

    async def close(self) -> None:
        """Run the close commands, whatever they say, and end every process that is left."""
        if self._closing is None:
            self._on_close(self)
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for command in self._recipe.close:
                with contextlib.suppress(CreateError, SandboxLost):
                    await self._must(command, "close")
        finally:
            await self._host.close()


def _host_environment() -> dict[str, str]:
    """What a command on the host needs of its caller's variables, and no more."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "XDG_RUNTIME_DIR", "LANG") if name in os.environ}


def _ticks() -> int:
    """Now, as /proc/PID/stat tells a process's start."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
