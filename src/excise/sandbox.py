"""What a user holds: one concrete class over any substrate.

Conveniences, spans, deadlines and error mapping are written here once, so that a substrate is only mechanism.
"""

import asyncio
import math
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from excise.action import (
    Action,
    Batch,
    Command,
    Exec,
    FileInfo,
    List,
    MakeDir,
    Move,
    Observation,
    Read,
    Remove,
    Shell,
    Stat,
    Write,
)
from excise.asked import as_action, as_exception, kind_of, longest_s, note
from excise.clock import now_ns
from excise.errors import CreateError, ReadyTimeout, SandboxLost, SpecError
from excise.handles import finish
from excise.looking.journal import printed_to, with_journal
from excise.looking.presence import Presence
from excise.patch import below, patch_of
from excise.registry import make
from excise.spec import Spec
from excise.streaming import KIND, Streamed, Waits
from excise.substrate import Change, Connection, Handle, Process, Snapshot, Substrate
from excise.trace import Span, begin_stage, span, stage
from excise.trajectory import Recorder, recorder

T = TypeVar("T")
ANSWER_GRACE_S = 30.0
"""How long after an action's own timeout the machinery may still take to say so before it counts as dead."""


class Sandbox:
    """A software environment for one rollout: `async with Sandbox("docker", Spec()) as box: await box.run("make")`."""

    def __init__(
        self,
        substrate: Substrate | str,
        start: Spec | Snapshot | None = None,
        *,
        ttl_s: float = 3600.0,
        wait_s: float = 120.0,
        timeout_s: float = 600.0,
        labels: Mapping[str, str] | None = None,
        keep_on_failure: bool = False,
    ) -> None:
        """Nothing happens until it is opened.

        `ttl_s`: the lease, after which gc may take it. `wait_s`: for create and ready. `timeout_s`: an action's own.
        `keep_on_failure`: a block that raises leaves it, for its lease, to be looked at: `excise shell`.
        """
        self._given = substrate
        self._start = start if start is not None else Spec()
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._labels = dict(labels or {})
        self._substrate: Substrate | None = None
        self._handle: Handle | None = None
        self._pid = os.getpid()
        self._name = ""
        self._recorder: Recorder | None = None
        self._keep = keep_on_failure
        self._presence: Presence | None = None

    # ---- life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._keep and self._presence is not None and await self._presence.keep(error):
                self._handle = None  # it is the substrate's now
        finally:
            await self.close()

    async def open(self) -> None:
        """Create the sandbox and wait until a first command has answered."""
        if self._handle is not None:
            self._live()
            return
        self._pid = os.getpid()
        self._name = uuid.uuid4().hex
        try:
            with stage("create", self._name):
                await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        self._substrate = substrate = make(self._given) if isinstance(self._given, str) else self._given
        spec = self._start if isinstance(self._start, Spec) else self._start.spec
        labels = {**spec.labels, **self._labels}
        late = f"in {self._wait_s:g} s; raise wait_s if it is only slow"
        ends_s = asyncio.get_running_loop().time() + self._wait_s
        making = substrate.create(
            self._start, deadline_s=self._wait_s, lease_s=self._ttl_s, labels=labels, request_id=self._name
        )
        self._handle = await _by(ends_s, making, CreateError(f"{substrate.address} made no sandbox {late}"))
        begin_stage("ready")
        unready = ReadyTimeout(f"{substrate.address} made a sandbox that did not answer {late}")
        await _by(ends_s, self._handle.ready(), unready)
        resumed = self._start is not spec
        self._recorder = with_journal(recorder(self._name, spec, snapshot=resumed), self._handle.id, spec, snapshot=resumed)
        self._presence = Presence(substrate, self._handle, spec, labels=labels, ttl_s=self._ttl_s, recorder=self._recorder)

    async def close(self) -> None:
        """Throw the sandbox away; nothing of it is left. Twice is fine."""
        if self._handle is not None:
            self._live()
        handle, self._handle = self._handle, None
        substrate, self._substrate = self._substrate, None
        presence, self._presence = self._presence, None
        try:
            if handle is not None:
                with span("cleanup", self._name):
                    await finish(_left(handle, presence))
        finally:
            if self._recorder is not None:
                self._recorder.close()
            if substrate is not None and isinstance(self._given, str):
                await finish(substrate.close())

    @property
    def id(self) -> str:
        return self._live().id

    async def renew(self, ttl_s: float) -> None:
        """Move the lease's end to `ttl_s` from now."""
        await self._answer("renew", self._live().renew(ttl_s))
        if self._presence is not None:
            self._presence.renewed(ttl_s)

    def _live(self) -> Handle:
        if os.getpid() != self._pid:
            raise RuntimeError("this Sandbox was opened before os.fork(): open another in the child process")
        if self._handle is None:
            raise RuntimeError("this Sandbox is not open: use it inside `async with`")
        return self._handle

    async def _answer(self, verb: str, work: Awaitable[T], limit_s: float | None = None) -> T:
        """Every verb has a deadline: machinery that lets it pass counts as dead."""
        limit_s = self._wait_s if limit_s is None else limit_s
        ends_s = asyncio.get_running_loop().time() + limit_s
        return await _by(ends_s, work, SandboxLost(f"{verb} was not answered in {limit_s:g} s"))

    # ---- actions

    async def run(
        self,
        action: str | Sequence[str] | Action,
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        **common: Any,
    ) -> Observation:
        """Run shell text, an argv list, or an action record, and return what came of it.

        A file action's failure is raised as the built-in exception; a command's never is.
        """
        asked_ns = now_ns()
        handle = self._live()
        act = as_action(action, session, timeout_s, common, default_s=self._timeout_s)
        with span("action", self._name, kind_of(act)) as recorded:
            recorded.start_ns = asked_ns  # Looking at what was asked for is part of its dispatch.
            limit_s = longest_s(act, self._timeout_s)
            ends_s = asyncio.get_running_loop().time() + limit_s + ANSWER_GRACE_S
            late = SandboxLost(f"no answer {ANSWER_GRACE_S:g} s after the action's own timeout of {limit_s:g} s")
            seen = await _by(ends_s, handle.run(act), late)
            note(recorded, seen)
        if self._recorder is not None:
            self._recorder.acted(act, recorded, seen)
        if seen.errno is not None and not isinstance(act, Batch):
            raise as_exception(act, seen.errno)
        return seen

    async def start(
        self,
        action: str | Sequence[str] | Command,
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        **common: Any,
    ) -> Process:
        """Start a command and hold it: events as they come, stdin, signals."""
        act = as_action(action, session, timeout_s, common, default_s=self._timeout_s)
        if not isinstance(act, Exec | Shell):
            raise SpecError(f"start takes a command, not {type(act).__name__}")
        with span("action", self._name, KIND) as recorded:
            process = await self._answer("start", self._live().start(act), self._timeout_s + ANSWER_GRACE_S)
        if self._recorder is not None:
            self._recorder.acted(act, recorded, None)
        return Streamed(process, self._name, printed_to(self._recorder))

    # ---- files

    async def read(self, path: str) -> bytes:
        return (await self.run(Read(path))).stdout

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        await self.run(Write(path, data.encode() if isinstance(data, str) else data, mode=mode))

    async def list(self, path: str) -> tuple[FileInfo, ...]:
        return (await self.run(List(path))).files

    async def stat(self, path: str) -> FileInfo:
        return (await self.run(Stat(path))).files[0]

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self.run(Remove(path, recursive))

    async def move(self, path: str, target: str) -> None:
        await self.run(Move(path, target))

    async def make_dir(self, path: str) -> None:
        await self.run(MakeDir(path))

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream into the directory `path`."""
        with span("upload", self._name) as recorded:
            await self._answer("upload", self._live().upload(path, tar), self._timeout_s + ANSWER_GRACE_S)
        self._record("upload", recorded)

    def download(self, path: str) -> AsyncIterator[bytes]:
        """`path` as a tar stream."""
        return Waits(self._live().download(path), "download", self._name)

    async def connect(self, port: int) -> Connection:
        """A byte stream to a port inside."""
        with span("connect", self._name):
            return await self._answer("connect", self._live().connect(port))

    # ---- state

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        """The state as it is. `keep_s`: saved before it is returned, and there for so long, whatever becomes of us."""
        if keep_s is not None and not 0 < keep_s < math.inf:
            raise SpecError(f"keep_s={keep_s}: a snapshot is kept for a number of seconds above zero")
        with span("snapshot", self._name):
            return await self._answer("snapshot", self._live().snapshot(keep_s=keep_s))

    async def reset(self, snapshot: Snapshot) -> None:
        """Go back to `snapshot`: its processes, /tmp, sessions too, as after a create."""
        with span("reset", self._name) as recorded:
            await self._answer("reset", self._live().reset(snapshot))
        self._record("reset", recorded)

    @overload
    async def diff(
        self, since: Snapshot | None = None, *, patch: Literal[False] = False, under: str = "/"
    ) -> tuple[Change, ...]: ...
    @overload
    async def diff(self, since: Snapshot | None = None, *, patch: Literal[True], under: str = "/") -> str: ...
    async def diff(self, since: Snapshot | None = None, *, patch: bool = False, under: str = "/") -> tuple[Change, ...] | str:
        """What changed in the directory `under` since `since`, or since the sandbox was ready or last reset.

        As paths; or as a patch that `git apply` takes, its names relative to `under`.
        """
        with span("diff", self._name) as recorded:
            changes = await self._answer("diff", self._live().diff(since, contents=patch), self._timeout_s + ANSWER_GRACE_S)
            found: tuple[Change, ...] | str = below(under, changes)
            if patch:
                found = await self._answer("diff", patch_of(self._live(), found, under), self._timeout_s + ANSWER_GRACE_S)
        self._record("diff", recorded)
        return found

    def _record(self, verb: str, span: Span) -> None:
        if self._recorder is not None:
            self._recorder.did(verb, span)

    async def pause(self) -> None:
        with span("pause", self._name):
            await self._answer("pause", self._live().pause())

    async def resume(self) -> None:
        with span("resume", self._name):
            await self._answer("resume", self._live().resume())

    @asynccontextmanager
    async def fork(self, count: int) -> AsyncGenerator[tuple["Sandbox", ...]]:
        """`count` siblings of this state, closed together; if one cannot be made, none is left."""
        if count < 1:
            raise SpecError(f"fork({count}): a group has at least one sandbox")
        snapshot = await self.snapshot()
        substrate = self._substrate
        assert substrate is not None
        children = tuple(
            Sandbox(substrate, snapshot, ttl_s=self._ttl_s, wait_s=self._wait_s, timeout_s=self._timeout_s, labels=self._labels)
            for _ in range(count)
        )
        try:
            await _open_all(children)
            yield children
        finally:
            await finish(_close_all(children, substrate, snapshot))


async def _left(handle: Handle, presence: Presence | None) -> None:
    """Who looks in is sent away first; whatever comes of that, the sandbox is closed."""
    try:
        if presence is not None:
            await presence.leave()
    finally:
        await handle.close()


async def _by(ends_s: float, work: Awaitable[T], late: Exception) -> T:
    """What `work` gives, or at that time of the loop's clock `late`."""
    try:
        async with asyncio.timeout_at(ends_s):
            return await work
    except TimeoutError:
        raise late from None


async def _open_all(sandboxes: Sequence[Sandbox]) -> None:
    """Open all, or raise what the first failure was; who owns them closes those that did open."""
    try:
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(sandbox.open())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _close_all(sandboxes: Sequence[Sandbox], substrate: Substrate, snapshot: Snapshot) -> None:
    outcomes = await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
    await substrate.discard(snapshot)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
