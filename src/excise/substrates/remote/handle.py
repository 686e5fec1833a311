"""A sandbox at a server as a Handle: every verb is one call."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator

import msgspec

from excise.action import Action, Command, Event, Exit, Observation, Output, Shell
from excise.channel import frames, records
from excise.channel.flow import Incoming
from excise.channel.refusal import Refused, as_exception
from excise.errors import ExciseError, SandboxLost, SpecError, SubstrateError, Unsupported
from excise.handles import finish, observe
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Connection, Process, Snapshot, require_command, unsupported
from excise.substrates.remote.call import Call
from excise.substrates.remote.client import Client


class RemoteHandle:
    """What a Handle does, done by the server."""

    def __init__(self, client: Client, id: str, address: str, capabilities: Capabilities) -> None:
        self.id = id
        self._client = client
        self._address = address
        self._capabilities = capabilities
        self._closing: asyncio.Task[None] | None = None

    def _live(self) -> Client:
        if self._closing is not None:
            raise SandboxLost("the sandbox is closed")
        return self._client

    def _require(self, ability: str, verb: str) -> None:
        if not self._capabilities.has(ability):
            raise unsupported(self._address, verb)

    async def ready(self) -> None:
        await self._live().ask(records.Ready(self.id))

    async def alive(self) -> None:
        await self._live().ask(records.Alive(self.id))

    async def adopt(self, spec: Spec) -> None:
        await self._live().ask(records.Adopt(self.id, spec))

    # ---- actions

    async def run(self, action: Action) -> Observation:
        return (await self._live().ask(records.Run(self.id, action))).observation

    async def start(self, action: Command) -> Process:
        self._require("stream", "start()")
        require_command(action, self._capabilities, self._address)
        client = self._live()
        return RemoteProcess(client, await client.started(records.Start(self.id, action)), self.id, action)

    async def connect(self, port: int) -> Connection:
        self._require("ports", f"connect({port})")
        client = self._live()
        return RemoteConnection(client, await client.started(records.Connect(self.id, port)))

    # ---- files

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        client = self._live()
        call = await client.begin(records.Upload(self.id, path), streams=True)
        whole = False
        try:
            async for piece in tar:
                if not await call.outgoing.write(piece):
                    break  # refused: it reads no more
            else:
                client.end_of_data(call)
            answer = await client.ended(call)
            whole = True
        finally:
            if not whole and call.final is None:
                await finish(client.cancel(call))  # a tar cut short must not look like a whole one
        if isinstance(answer.value, Refused):
            raise as_exception(answer.value)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        client = self._live()
        call = await client.begin(records.Download(self.id, path), streams=True)
        try:
            async for _, data in _pieces(call):
                yield data
        finally:
            if call.final is None:
                await finish(client.cancel(call))
        assert call.final is not None
        if isinstance(call.final.value, Refused):
            raise as_exception(call.final.value)

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        if self._capabilities.snapshot is None:
            raise unsupported(self._address, "snapshot")
        (taken,) = (await self._live().ask(records.Snap(self.id, keep_s))).snapshots
        return msgspec.structs.replace(taken, address=self._address)

    async def reset(self, snapshot: Snapshot) -> None:
        if self._capabilities.snapshot is None:
            raise unsupported(self._address, "reset")
        await self._live().ask(records.Reset(self.id, snapshot))

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        return (await self._live().ask(records.Diff(self.id, since, contents))).changes

    # ---- life

    async def pause(self) -> None:
        self._require("pause", "pause")
        await self._live().ask(records.Pause(self.id))

    async def resume(self) -> None:
        self._require("pause", "resume")
        await self._live().ask(records.Resume(self.id))

    async def renew(self, lease_s: float) -> None:
        await self._live().ask(records.Renew(self.id, lease_s))

    async def close(self) -> None:
        """Carried to its end even when cancelled. A server that is gone has its lease to go by."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await finish(asyncio.shield(self._closing))

    async def _close(self) -> None:
        with contextlib.suppress(SandboxLost, SubstrateError):  # which would hide why the rollout ended
            await self._client.ask(records.Close(self.id))


async def _pieces(call: Call) -> AsyncIterator[tuple[int, bytes]]:
    assert isinstance(call.incoming, Incoming)
    while (piece := await call.incoming.take()) is not None:
        yield piece


class RemoteProcess:
    """A running command. Output waits at the server, and then in the sandbox, until it is asked for."""

    def __init__(self, client: Client, call: Call, sandbox: str, action: Command) -> None:
        self._client = client
        self._call = call
        self._sandbox = sandbox
        self._action = action
        self._session = isinstance(action, Shell) and action.session is not None
        self._writing = asyncio.Lock()
        self._closed_stdin = bool(action.stdin) and action.pty is None
        self._exit: Observation | None = None

    @property
    def id(self) -> str:
        return str(self._call.number)

    async def events(self) -> AsyncIterator[Event]:
        async for flags, data in _pieces(self._call):
            yield Output("stderr" if flags & frames.FLAG_STDERR else "stdout", data)
        if self._exit is None:
            self._exit = self._outcome()
            yield Exit(self._exit)

    def _outcome(self) -> Observation:
        assert self._call.final is not None
        value = self._call.final.value
        if isinstance(value, Refused):
            raise as_exception(value)
        if not isinstance(value, records.Seen):
            raise SandboxLost(f"the server answered {type(value).__name__.lower()}: it is another version of excise")
        return value.observation

    async def wait(self) -> Observation:
        return self._exit if self._exit is not None else await observe(self, self._action.keep)

    async def write(self, data: bytes) -> None:
        if self._session:
            raise Unsupported(f"a session's action has no stdin to write {len(data)} bytes to; start one without a session")
        async with self._writing:
            if self._closed_stdin:
                raise BrokenPipeError("this process's stdin is closed")
            if not await self._call.outgoing.write(data):
                raise BrokenPipeError("this process has ended and reads no more")

    async def close_stdin(self) -> None:
        if self._session:
            return  # it never had any
        if self._action.pty is not None:
            await self.write(b"\x04")  # a terminal's end of file is a character
            return
        async with self._writing:
            if not self._closed_stdin:
                self._closed_stdin = True
                self._client.end_of_data(self._call)

    async def resize(self, rows: int, columns: int) -> None:
        if self._session:
            raise Unsupported(f"a session has no terminal to make {rows} by {columns}")
        if self._action.pty is None:
            raise SpecError("this process has no terminal to resize: start it with pty=Pty()")
        self._client.tell(self._call, records.Resize(rows, columns))

    async def signal(self, number: int) -> None:
        if self._session:
            raise Unsupported(f"signal {number} cannot be sent to a session's action: kill it, or use a timeout")
        self._client.tell(self._call, records.Signal(number))

    async def kill(self) -> None:
        """All that it started; what it left running after its own end, too."""
        final = self._call.final
        if final is None:
            await self._client.cancel(self._call)
        elif isinstance(final.value, records.Seen) and final.value.observation.still_running:
            with contextlib.suppress(ExciseError):
                await self._client.ask(records.Kill(self._sandbox, self._call.number))


class RemoteConnection:
    """A byte stream to a port inside."""

    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self._call = call
        self._writing = asyncio.Lock()

    async def read(self) -> bytes:
        assert isinstance(self._call.incoming, Incoming)
        piece = await self._call.incoming.take()
        if piece is not None:
            return piece[1]
        final = self._call.final
        if final is not None and isinstance(final.value, Refused) and final.value.kind != "cancelled":
            raise as_exception(final.value)
        return b""

    async def write(self, data: bytes) -> None:
        async with self._writing:
            if not await self._call.outgoing.write(data):
                raise BrokenPipeError("the port's other side has closed the connection")

    async def close(self) -> None:
        await self._client.cancel(self._call)
