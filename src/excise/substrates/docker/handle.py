"""One container as a Handle."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable

from excise.action import Action, Batch, Command, Exec, Observation, Shell
from excise.errors import SandboxLost
from excise.guestless.files import run_file
from excise.guestless.tar import download, upload
from excise.handles import environment, finish, make_ready, observe, run_batch
from excise.spec import Spec
from excise.substrate import Connection, Process, Snapshot, unsupported
from excise.substrates.docker.container import renewed_name
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.inside import Inside
from excise.substrates.docker.process import DockerProcess, wrapped


class DockerHandle:
    """Actions by exec, each with a shell of ours around it."""

    def __init__(
        self,
        engine: Engine,
        id: str,
        *,
        address: str,
        spec: Spec,
        ready: bool = False,
        on_close: Callable[["DockerHandle"], None] | None = None,
    ) -> None:
        self.id = id
        self._engine = engine
        self._address = address
        self._spec = spec
        self._on_close = on_close
        self._inside = Inside(engine, id)
        self._limited = bool(spec.limits.asked() & {"memory_bytes", "pids"})
        self._readying = asyncio.Lock()
        self._is_ready = ready

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readying:
            self._check_open()
            if not self._is_ready:
                await make_ready(self, self._spec)
                self._is_ready = True

    # ---- actions

    async def run(self, action: Action) -> Observation:
        match action:
            case Batch():
                return await run_batch(self, action)
            case Exec() | Shell():
                return await self._run(action)
            case _:
                return await run_file(self._run, action)

    async def _run(self, action: Command) -> Observation:
        process = await self._start(action, interactive=False)
        try:
            return await observe(process, action.keep)
        except BaseException:
            await finish(_killed(process))
            raise
        finally:
            process.release()

    async def start(self, action: Command) -> Process:
        return await self._start(action, interactive=True)

    async def _start(self, action: Command, *, interactive: bool) -> DockerProcess:
        self._check_open()
        if isinstance(action, Shell) and action.session is not None:
            raise unsupported(self._address, "sessions")
        half_closes = not self._engine.endpoint.encrypted
        given = wrapped(action, interactive=interactive, half_closes=half_closes, limited=self._limited)
        process = DockerProcess(self._inside, action, given)
        await process.begin(environment({}, self._spec, action))
        return process

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await upload(self, path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return download(self, path)

    # ---- life

    async def pause(self) -> None:
        self._check_open()
        with self._engine.losses():
            await self._engine.container(self.id).pause()

    async def resume(self) -> None:
        self._check_open()
        with self._engine.losses():
            await self._engine.container(self.id).unpause()

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        with self._engine.losses():
            shown = await self._engine.show(self.id)
            await self._engine.rename(self.id, renewed_name(shown["Name"], time.time() + lease_s))

    async def close(self) -> None:
        self._inside.closed = True
        live = tuple(self._inside.live)
        for process in live:
            process.release()
        await finish(self._remove(live))

    async def _remove(self, live: tuple[DockerProcess, ...]) -> None:
        await self._engine.remove(self.id)
        if self._on_close is not None:
            self._on_close(self)
        for process in live:
            await process.settled()

    def _check_open(self) -> None:
        if self._inside.closed:
            raise SandboxLost("the sandbox is closed")

    # ---- what its own path does not have

    async def connect(self, port: int) -> Connection:
        raise unsupported(self._address, f"connect({port})")

    async def snapshot(self) -> Snapshot:
        raise unsupported(self._address, "snapshot")

    async def reset(self, snapshot: Snapshot) -> None:
        raise unsupported(self._address, "reset")


async def _killed(process: DockerProcess) -> None:
    try:
        await process.kill()
    except SandboxLost:
        return  # then nothing of it is left either; what is being raised says more
