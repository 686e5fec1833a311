"""One sandbox for many cases, one after another, where making one takes long: each finds it as the first one did.

What a case left in the working directory is removed and what it left running is ended; a session is its own by its name.
A case that asks for more than a plain sandbox, or for a second one, gets sandboxes of its own.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec

from excise.action import Action, Batch, Command, Exec, FileAction, List, Observation, Remove, Shell, Write
from excise.contract import scripts
from excise.contract.bound import NeedsOwn, Sandboxes
from excise.errors import ExciseError, SandboxLost
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Connection, Handle, Listed, Process, Snapshot, Substrate

A = TypeVar("A", bound=Command | FileAction)
OPEN_S = 300.0
"""For the one that is shared: nobody waits for another."""
LEASE_S = 3600.0
CLEAN_S = 60.0


class Shared:
    """A sandbox of the suite's spec, made when it is first wanted, and again if a case was the end of it."""

    def __init__(self, substrate: Substrate, spec: Spec, sandboxes: Sandboxes) -> None:
        self._substrate = substrate
        self._spec = spec
        self._sandboxes = sandboxes
        self._handle: Handle | None = None
        self._workdir = ""
        self._lent = 0

    async def prepare(self) -> None:
        """It is there, and answers. Its making is no case's time."""
        if self._handle is not None:
            try:
                await self._handle.alive()
            except SandboxLost:
                await self.close()
            else:
                return
        self._sandboxes.take()
        self._handle = await self._substrate.create(
            self._spec, deadline_s=OPEN_S, lease_s=LEASE_S, labels={}, request_id=f"contract-shared-{id(self)}-{self._lent}"
        )
        async with asyncio.timeout(OPEN_S):
            await self._handle.ready()
        seen = await self._handle.run(Shell(scripts.PRINT_WORKDIR, timeout_s=CLEAN_S))
        self._workdir = seen.stdout.decode().removesuffix("\n")

    @property
    def handle(self) -> Handle:
        """The sandbox itself, once it was prepared."""
        assert self._handle is not None, "it was not prepared"
        return self._handle

    def lend(self) -> "Lent":
        """To one case."""
        self._lent += 1
        return Lent(self._substrate, LentHandle(self.handle, self._workdir, f"{self._lent}-"))

    async def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.close()


class Lent:
    """A Substrate that hands out the shared sandbox, once."""

    def __init__(self, substrate: Substrate, handle: "LentHandle") -> None:
        self.address = substrate.address
        self._substrate = substrate
        self._handle = handle

    async def probe(self) -> Capabilities:
        return await self._substrate.probe()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> Handle:
        return self._handle

    async def attach(self, id: str) -> Handle:
        _own()

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        _own()

    async def snapshots(self) -> tuple[Snapshot, ...]:
        _own()

    async def discard(self, snapshot: Snapshot) -> None:
        _own()

    async def collect(self) -> tuple[str, ...]:
        _own()

    async def close(self) -> None:
        """It is not this one's to close."""


class LentHandle:
    """The shared sandbox as one case holds it: closing it makes it as it was."""

    def __init__(self, handle: Handle, workdir: str, prefix: str) -> None:
        self._handle = handle
        self._workdir = workdir
        self._prefix = prefix
        self._returned = False

    @property
    def id(self) -> str:
        return self._handle.id

    async def ready(self) -> None:
        await self._handle.ready()

    async def alive(self) -> None:
        await self._handle.alive()

    async def adopt(self, spec: Spec) -> None:
        _own()

    # ---- actions

    async def run(self, action: Action) -> Observation:
        return await self._handle.run(self._named(action))

    async def start(self, action: Command) -> Process:
        return await self._handle.start(self._in_session(action))

    def _named(self, action: Action) -> Action:
        if isinstance(action, Batch):
            return msgspec.structs.replace(action, actions=tuple(self._in_session(each) for each in action.actions))
        return self._in_session(action)

    def _in_session(self, action: A) -> A:
        """Sessions of earlier cases have state: this case's are others."""
        if isinstance(action, Shell) and action.session is not None:
            return msgspec.structs.replace(action, session=self._prefix + action.session)
        return action

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._handle.upload(path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return self._handle.download(path)

    async def connect(self, port: int) -> Connection:
        return await self._handle.connect(port)

    async def pause(self) -> None:
        await self._handle.pause()

    async def resume(self) -> None:
        await self._handle.resume()

    # ---- what one cannot do to a sandbox that others have after it

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        _own()

    async def reset(self, snapshot: Snapshot) -> None:
        _own()

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        _own()

    async def renew(self, lease_s: float) -> None:
        _own()

    # ---- its return

    async def close(self) -> None:
        """Twice is fine. One that was lost meanwhile cannot be cleaned: the next case gets another."""
        if self._returned:
            return
        self._returned = True
        with suppress(SandboxLost):
            await self._clean()

    async def _clean(self) -> None:
        # What is left running has its working directory here, as far as it can be told; what beats looks for a file.
        await self._handle.run(Write(f"{self._workdir}/{scripts.ENOUGH}", b""))
        with suppress(ExciseError, OSError):
            await self._handle.run(Exec(("sh", "-c", scripts.END_BELOW, "sh", self._workdir), cwd="/", timeout_s=CLEAN_S))
        for entry in (await self._handle.run(List(self._workdir))).files:
            await self._handle.run(Remove(f"{self._workdir}/{entry.name}", recursive=True))


def _own() -> NoReturn:
    raise NeedsOwn
