"""A sandbox whose processes are this machine's own: the whole Handle, whatever root they see."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from excise.action import KEEP_ALL, Action, Batch, Command, Exec, FileAction, Keep, Observation, Shell, Write
from excise.adoption import require_adoption
from excise.errors import SandboxLost, SpecError
from excise.guestless.tar import download, upload
from excise.handles import Readiness, Undeclared, environment, finish, observe, run_batch
from excise.host import packets
from excise.host.ends import Ends
from excise.host.link import Keeper
from excise.host.process import Answers, HostProcess, Pipes, Stream
from excise.host.runner import set_size
from excise.host.session import HostSession, SessionProcess, refuse_options
from excise.spec import Spec
from excise.substrate import Capabilities, Process, require_command


class HostHandle(Undeclared):
    """Actions as processes of this machine, below one keeper."""

    def __init__(
        self,
        *,
        id: str,
        address: str,
        capabilities: Capabilities,
        keeper: Keeper,
        spec: Spec,
        image_env: Mapping[str, str],
        user: str | None,
        on_close: Callable[["HostHandle"], None],
    ) -> None:
        self.id = id
        self._address = address
        self._capabilities = capabilities
        self._keeper = keeper
        self._spec = spec
        self._image_env = image_env
        self._user = user
        self._sessions: dict[str, asyncio.Task[HostSession]] = {}
        self._processes: set[HostProcess] = set()
        self._starting = asyncio.Lock()
        self._on_close = on_close
        self._closed = False
        self._readiness = Readiness()

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readiness.turn:
            self._check_open()
            await self._readiness.reach(self, self._spec)

    async def alive(self) -> None:
        self._check_open()
        if not await self._keeper.answer():
            raise SandboxLost("the process that keeps this sandbox is gone")

    async def adopt(self, spec: Spec) -> None:
        async with self._readiness.turn:
            self._check_open()
            require_adoption(self._spec, spec, self._capabilities, self._address)
            self._spec = spec
            self._readiness.adopt()
            await self._end_sessions()  # they have the variables of the spec before

    # ---- actions

    async def run(self, action: Action) -> Observation:
        match action:
            case Batch():
                return await run_batch(self, action)
            case Exec() | Shell():
                process = await self.begin(action, interactive=False)
                return await self._to_its_end(process, action.keep)
            case _:
                return await self._to_its_end(await self._file(action), KEEP_ALL)

    async def _to_its_end(self, process: HostProcess | SessionProcess, keep: Keep) -> Observation:
        """Cancelled or failed, nothing the action started outlives the call."""
        try:
            return await observe(process, keep)
        except BaseException:
            await finish(process.kill())
            raise
        finally:
            process.release()

    async def start(self, action: Command) -> Process:
        return await self.begin(action, interactive=True)

    async def begin(self, action: Command, *, interactive: bool) -> HostProcess | SessionProcess:
        """Start a command; `interactive` leaves its stdin open for the caller to write."""
        self._check_open()
        require_command(action, self._capabilities, self._address)
        if isinstance(action, Shell) and action.session is not None:
            return await self._in_session(action, action.session)
        argv = action.argv if isinstance(action, Exec) else ("/bin/sh", "-c", action.script)
        request = {
            "op": "exec",
            "argv": argv,
            "env": environment(self._image_env, self._spec, action),
            "cwd": action.cwd,
            "user": action.user if action.user is not None else self._user,
            "pty": action.pty is not None,
        }
        if action.pty is not None:
            return await self._on_terminal(request, action)
        streaming = interactive and not action.stdin
        return await self._on_pipes(
            request, action.stdin, streaming=streaming, merge=action.merge, keep=action.keep, timeout_s=action.timeout_s
        )

    @asynccontextmanager
    async def _opening(self) -> AsyncGenerator[Ends]:
        """One at a time: many who open theirs and then wait for the keeper would run out of descriptors before any began."""
        async with self._starting:
            with Ends() as ends:
                yield ends

    async def _on_pipes(
        self, request: dict[str, Any], stdin: bytes, *, streaming: bool, merge: bool, keep: Keep, timeout_s: float | None
    ) -> HostProcess:
        """Input known beforehand is a file that reads it; otherwise a pipe that the caller writes."""
        async with self._opening() as ends:
            writing = None
            if streaming:
                reading, writing = ends.pipe()
                os.set_blocking(writing, False)
                ends.hand_over(reading)
            else:
                ends.hand_over(ends.own(packets.memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY)))
            out, out_written = ends.pipe()
            read: dict[Stream, int] = {"stdout": out}
            err_written = out_written
            if not merge:
                read["stderr"], err_written = ends.pipe()
            # The reading ends too, for when we are done reading and what the program left behind still prints.
            ends.hand_over(out_written, err_written, *read.values())
            answers = await self._request(request, ends)
            ends.keep(*read.values(), *(() if writing is None else (writing,)))
        return self._hold(
            HostProcess(answers=answers, pipes=Pipes(read), stdin=writing, terminal=False, keep=keep, timeout_s=timeout_s)
        )

    async def _on_terminal(self, request: dict[str, Any], action: Command) -> HostProcess:
        assert action.pty is not None
        async with self._opening() as ends:
            ours, theirs = (ends.own(end) for end in os.openpty())
            set_size(ours, action.pty.rows, action.pty.columns)
            writing = ends.own(os.dup(ours))
            ends.hand_over(theirs, theirs, theirs)
            request["env"] = {"TERM": "xterm", **request["env"]}
            answers = await self._request(request, ends)
            ends.keep(ours, writing)
        return self._hold(
            HostProcess(
                answers=answers,
                pipes=Pipes({"stdout": ours}),
                stdin=writing,
                terminal=True,
                keep=action.keep,
                timeout_s=action.timeout_s,
                typed=action.stdin,
            )
        )

    def _hold(self, process: HostProcess) -> HostProcess:
        """Who started it may never read it to its end; the sandbox's end is the end of it, too."""
        self._processes.add(process)
        process.on_release = self._processes.discard
        return process

    async def _file(self, action: FileAction) -> HostProcess:
        self._check_open()
        request: dict[str, Any] = {
            "op": type(action).__struct_config__.tag,
            "user": self._user,
            **msgspec.structs.asdict(action),
        }
        data: bytes = request.pop("data") if isinstance(action, Write) else b""
        return await self._on_pipes(request, data, streaming=False, merge=False, keep=KEEP_ALL, timeout_s=None)

    async def _request(self, request: dict[str, Any], ends: Ends) -> Answers:
        """Ask the keeper for a runner, to which go the ends that were handed over."""
        ours, theirs = packets.pair()
        with theirs:
            try:
                body = ends.own(packets.body(request))
                await self._keeper.send([body, theirs.fileno(), *ends.handed])
            except BaseException:
                ours.close()
                raise
        return Answers(ours)

    # ---- sessions

    async def _in_session(self, action: Shell, name: str) -> SessionProcess:
        refuse_options(action)
        opening = self._sessions.get(name)
        if opening is None:
            opening = self._sessions[name] = asyncio.create_task(self._open_session())
            opening.add_done_callback(lambda done: self._opened(name, done))
        session = await asyncio.shield(opening)
        await session.turn.acquire()
        if session.answers.gone:
            session.turn.release()
            raise SandboxLost("the session's own process is gone")
        return SessionProcess(session, action)

    def _opened(self, name: str, opening: asyncio.Task[HostSession]) -> None:
        """One that could not be opened is forgotten, whether or not somebody still waits to hear of it."""
        if opening.cancelled() or opening.exception() is not None:
            self._sessions.pop(name, None)

    async def _open_session(self) -> HostSession:
        with Ends() as ends:
            (out, out_written), (err, err_written) = ends.pipe(), ends.pipe()
            ends.hand_over(ends.own(os.open(os.devnull, os.O_RDONLY)), out_written, err_written)
            request = {"op": "session", "env": environment(self._image_env, self._spec), "user": self._user}
            answers = await self._request(request, ends)
            opened = await answers.next()
            if opened is None:
                raise SandboxLost("the session could not be started")
            if "error" in opened:
                answers.close()
                raise SpecError(opened["error"])
            ends.keep(out, err)
        return HostSession(answers, Pipes({"stdout": out, "stderr": err}))

    # ---- streams of files

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await upload(self, path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return download(self, path)

    # ---- life

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        await self._keeper.send([], {"renew_s": lease_s})

    async def close(self) -> None:
        self._closed = True
        self._on_close(self)
        await self._keeper.close()
        for process in tuple(self._processes):
            process.release()
        await self._end_sessions()

    async def _end_sessions(self) -> None:
        sessions, self._sessions = self._sessions, {}
        if sessions:
            await asyncio.wait(sessions.values())
        for opening in sessions.values():
            if opening.exception() is None:
                opening.result().close()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxLost("this sandbox is closed")
