"""The client's side of a session: one persistent bash, its actions in order."""

import asyncio
import os
from collections.abc import AsyncIterator

from excise.action import Event, Exit, Observation, Output, Shell
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
    if any("\ud800" <= character <= "\udbff" for character in action.script):
        raise SpecError("a script cannot hold half a surrogate pair: no encoding passes it on")
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
    """One action of a session, as a `Process`. It holds the session's turn until its end, whether or not it is read."""

    def __init__(self, session: HostSession, action: Shell) -> None:
        self.id = os.urandom(8).hex()
        self._session = session
        self._action = action
        self._exit = session.answers.next()
        self._timed_out = False
        self._settled = False
        self._rest: list[Output] = []
        """What was still in the pipes at its end: taken out, so that the next action does not read it."""
        self._ended: Observation | None = None
        request = packets.body({"script": action.script, "merge": action.merge})
        session.answers.order({"run": True}, [request])
        os.close(request)
        timeout_s = action.timeout_s
        self._timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        self._exit.add_done_callback(self._settle)

    def _time_out(self) -> None:
        self._timed_out = not self._exit.done()
        self._session.answers.order({"kill": True})

    def _settle(self, _: object = None) -> None:
        """Its end, once."""
        if self._settled:
            return
        self._settled = True
        if self._timer is not None:
            self._timer.cancel()
        self._rest = self._session.pipes.rest()
        record = self._exit.result()
        if record is not None:
            self._ended = as_observation(record, timed_out=self._timed_out and bool(record["killed"]))
        self._session.turn.release()

    async def events(self) -> AsyncIterator[Event]:
        async for output in self._session.pipes.live(self._exit):
            yield output
        self._settle()
        rest, self._rest = self._rest, []
        for output in rest:
            yield output
        if self._ended is None:
            raise SandboxLost("the session's own process is gone")
        yield Exit(self._ended)

    async def wait(self) -> Observation:
        return await observe(self, self._action.keep)

    async def kill(self) -> None:
        """Kill the command; the shell lives on."""
        if not self._exit.done():
            self._session.answers.order({"kill": True})
        async for _ in self._session.pipes.live(self._exit):
            pass  # what it prints goes with it: a shell that is stuck in printing would not come back
        self._settle()

    def release(self) -> None:
        """The session keeps all that it used."""

    async def write(self, data: bytes) -> None:
        raise Unsupported(f"a session's action has no stdin to write {len(data)} bytes to; start one without a session")

    async def close_stdin(self) -> None:
        """It never had any."""

    async def resize(self, rows: int, columns: int) -> None:
        raise Unsupported(f"a session has no terminal to make {rows} by {columns}")

    async def signal(self, number: int) -> None:
        raise Unsupported(f"signal {number} cannot be sent to a session's action: kill it, or use a timeout")
