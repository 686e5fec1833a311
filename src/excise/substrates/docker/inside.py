"""What happens inside a container by exec: programs started, scripts of ours run, limits looked at."""

from typing import TYPE_CHECKING

from excise.action import Exec, Observation
from excise.errors import SandboxLost
from excise.guestless.wrapper import COUNT, MARKER, Counts, Stream, Wrapped, inline
from excise.substrates.docker.connection import ExecConnection
from excise.substrates.docker.engine import Engine

if TYPE_CHECKING:
    from aiodocker.execs import Exec as EngineExec

    from excise.substrates.docker.process import DockerProcess

# No key a program is likely to be sent: by default Docker takes ctrl-p ctrl-q out of a terminal's input and hangs up.
_DETACH_KEYS = "ctrl-^,ctrl-],ctrl-^,ctrl-],ctrl-^"


class Inside:
    """One running container, and the actions in flight in it."""

    def __init__(self, engine: Engine, container_id: str) -> None:
        self.engine = engine
        self.container_id = container_id
        self.live: set[DockerProcess] = set()
        self.closed = False

    async def open(
        self, wrapped: Wrapped, *, env: dict[str, str], user: str, terminal: bool = False
    ) -> "tuple[EngineExec, ExecConnection]":
        """Start the wrapping shell; it waits for its preamble."""
        if self.closed:
            raise SandboxLost("the sandbox is closed")
        with self.engine.losses():
            made = await self.engine.container(self.container_id).exec(
                wrapped.argv,
                stdin=True,
                tty=terminal,
                user=user,
                environment={**env, MARKER: wrapped.nonce} if wrapped.nonce else env,
                detach_keys=_DETACH_KEYS if terminal else None,
            )
            return made, await self.engine.hijack(made.id, terminal=terminal)

    async def run_inline(self, action: Exec, *, user: str = "0") -> Observation:
        """Run a script of ours (`sh -c TEXT sh ARG...`), as root if not said, in one process: for when nothing else works."""
        wrapped = inline(action.argv[2], *action.argv[4:])
        _, connection = await self.open(wrapped, env={}, user=user)
        stream, said = Stream(wrapped, "stdout"), b""
        try:
            await connection.write(wrapped.preamble)
            while stream.ended is None and (frame := await connection.frame()) is not None:
                said += stream.feed(frame[1])
        except BrokenPipeError:
            pass  # as when it ends without its last word
        finally:
            connection.close()
        if stream.ended is None:
            raise SandboxLost(
                f"nothing runs in the sandbox any more: {(said + stream.rest()).decode('utf-8', 'replace').strip()}"
            )
        return Observation(exit_code=stream.ended.exit_code, stdout=said)

    async def counts(self) -> Counts:
        """What the limits did so far. An answer also shows that the container lives; without one it is SandboxLost."""
        return Counts.parse((await self.run_inline(Exec(("sh", "-c", COUNT, "sh")))).stdout)
