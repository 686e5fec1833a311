"""What happens inside a container by exec: programs started, scripts of ours run, limits looked at."""

from typing import TYPE_CHECKING, Any

from excise.action import End, Exec, Observation
from excise.errors import SandboxLost
from excise.guestless.wrapper import MARKER, Stream, Wrapped, inline
from excise.substrates.docker.connection import ExecConnection
from excise.substrates.docker.engine import Engine

if TYPE_CHECKING:
    from aiodocker.execs import Exec as EngineExec

    from excise.substrates.docker.process import DockerProcess

# No key a program is likely to be sent: by default Docker takes ctrl-p ctrl-q out of a terminal's input and hangs up.
_DETACH_KEYS = "ctrl-^,ctrl-],ctrl-^,ctrl-],ctrl-^"

# Both generations of cgroups; only builtins, since at its limit of processes a sandbox can start none.
_EVENTS = r"""
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control \
    /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events; do
    [ -r "$file" ] || continue
    while read -r name count; do
        case $file:$name in *memory*:oom_kill | *pids*:max) printf '%s %s\n' "$name" "$count" ;; esac
    done <"$file"
done
:
"""
_KILLED = 137


class Inside:
    """One running container, and the actions in flight in it."""

    def __init__(self, engine: Engine, container_id: str, *, limited: frozenset[str]) -> None:
        self.engine = engine
        self.container_id = container_id
        self.live: set[DockerProcess] = set()
        self.closed = False
        self._limited = limited
        self._events = {"oom_kill": 0, "max": 0}

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
        """Run a script of ours (`sh -c TEXT sh ARG...`), as root if not said, in one process: it must work when all else fails."""
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

    async def verdict(self, exit_code: int, *, killed: bool) -> End:
        """How an action that failed ended, by the limits it ran into meanwhile; SandboxLost if the container died with it."""
        if not killed and not self._limited:
            return End.EXITED
        before, self._events = self._events, await self._read_events()
        if exit_code == _KILLED and self._events["oom_kill"] > before["oom_kill"]:
            return End.OUT_OF_MEMORY
        return End.OUT_OF_PIDS if self._events["max"] > before["max"] else End.EXITED

    async def note_events(self) -> None:
        """Take what the limits did so far as done by others."""
        if self._limited:
            self._events = await self._read_events()

    async def _read_events(self) -> dict[str, int]:
        seen = await self.run_inline(Exec(("sh", "-c", _EVENTS, "sh")))
        counts: dict[str, Any] = dict(line.split() for line in seen.stdout.decode().splitlines())
        return {name: int(counts.get(name, count)) for name, count in self._events.items()}
