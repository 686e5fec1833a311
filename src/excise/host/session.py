"""The client's side of a session: one persistent bash, its actions in order."""

import asyncio
import os
from collections.abc import AsyncIterator

from excise.action import Event, Exit, Observation, Shell
from excise.errors import SandboxLost, SpecError, Unsupported
from excise.handles import observe
from excise.host import packets
from excise.host.process import Answers, Pipes, as_observation


def refuse_options(action: Shell) -> None:
    """A session has a directory, variables and a user of its own; an action cannot bring others."""
    given = [
        name
        for name, asked in (
            ("cwd", action.cwd),
            ("env", action.env),
            ("stdin", action.stdin),
            ("user", action.user),
            ("pty", action.pty),
        )
        if asked
    ]
    if given:
        raise SpecError(f"a session's action takes no {', '.join(given)}: use cd, export or a redirection inside the script")


class HostSession:
    """A shell that lives from its first action to the sandbox's end."""

    def __init__(self, answers: Answers, pipes: Pipes) -> None:
        self.answers = answers
        self.pipes = pipes
        self.turn = asyncio.Lock()

    def close(self) -> None:
        self.answers.close()
        self.pipes.close()


class SessionProcess:
    """One action of a session, as a `Process`. It holds the session's turn until its end."""

    def __init__(self, session: HostSession, action: Shell) -> None:
        self.id = os.urandom(8).hex()
        self._session = session
        self._action = action
        self._exit = session.answers.next()
        self._timed_out = False
        self._ended: Observation | None = None
        request = packets.body({"script": action.script, "merge": action.merge})
        session.answers.order({"run": True}, [request])
        os.close(request)
        timeout_s = action.timeout_s
        self._timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._time_out)

    def _time_out(self) -> None:
        self._timed_out = not self._exit.done()
        self._session.answers.order({"kill": True})

    async def events(self) -> AsyncIterator[Event]:
        async for output in self._session.pipes.until(self._exit):
            yield output
        record = self._finish()
        if record is None:
            raise SandboxLost("the session's own process is gone")
        self._ended = as_observation(record, timed_out=self._timed_out)
        yield Exit(self._ended)

    def _finish(self) -> dict[str, object] | None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session.turn.locked() and self._ended is None:
            self._session.turn.release()
        return self._exit.result()

    async def wait(self) -> Observation:
        return self._ended if self._ended is not None else await observe(self, self._action.keep)

    async def kill(self) -> None:
        """Kill the command; the shell lives on."""
        if not self._exit.done():
            self._session.answers.order({"kill": True})
        async for _ in self._session.pipes.until(self._exit):
            pass  # what it printed goes with it: the next action must not read it
        record = self._finish()
        if record is not None and self._ended is None:
            self._ended = as_observation(record, timed_out=False)

    async def write(self, data: bytes) -> None:
        raise Unsupported(f"a session's action has no stdin to write {len(data)} bytes to; start one without a session")

    async def close_stdin(self) -> None:
        """It never had any."""

    async def resize(self, rows: int, columns: int) -> None:
        raise Unsupported(f"a session has no terminal to make {rows} by {columns}")

    async def signal(self, number: int) -> None:
        raise Unsupported(f"signal {number} cannot be sent to a session's action: kill it, or use a timeout")
