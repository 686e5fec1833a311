"""What happens inside a sandbox by its own exec: programs started, scripts of ours run, limits looked at."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from excise.action import Exec, Observation
from excise.errors import SandboxLost
from excise.guestless.wrapper import COUNT, MARKER, Counts, Stream, Wrapped, inline

if TYPE_CHECKING:
    from excise.guestless.process import GuestlessProcess

STDERR = 2
Lost = Callable[[str], Awaitable[SandboxLost]]
"""Why a sandbox is no more, if the engine says so; given what was seen of it from here."""


class Wire(Protocol):
    """An exec's own connection: output read only when asked, and the way to stdin."""

    @property
    def id(self) -> str: ...
    @property
    def half_closes(self) -> bool:
        """Whether the end of stdin can be said while output still comes."""
        ...

    @property
    def exit_code(self) -> int | None:
        """The wrapping shell's own, known once output has ended, where the engine says it."""
        ...

    async def frame(self) -> tuple[int, bytes] | None:
        """The next piece of output and the stream it belongs to (2: stderr); None at the end."""
        ...

    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def resize(self, rows: int, columns: int) -> None: ...
    def close(self) -> None:
        """Let go of it; what runs inside does not notice."""
        ...


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What an exec starts: an argv with these variables, as this user ("": the sandbox's own), on a terminal or not."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    user: str = ""
    terminal: bool = False


class Inside:
    """One running sandbox, reached by `start`, and the actions in flight in it."""

    def __init__(
        self,
        start: Callable[[Start], Awaitable[Wire]],
        *,
        root: str = "",
        callers_fault: tuple[str, ...] = (),
        lost: Lost | None = None,
    ) -> None:
        """`lost`: who can say why nothing runs in the sandbox any more, better than the exec that found it out."""
        self._start = start
        self._lost = lost
        self._root = root
        """How root is called, where an exec can be root's."""
        self.callers_fault = callers_fault
        """What the engine says of a request that no sandbox could carry out; all else it says is its own trouble."""
        self.live: set[GuestlessProcess] = set()
        self.closed = False

    async def open(self, wrapped: Wrapped, *, env: Mapping[str, str], user: str, terminal: bool = False) -> Wire:
        """Start the wrapping shell; it waits for its preamble."""
        if self.closed:
            raise SandboxLost("the sandbox is closed")
        marked = {**env, MARKER: wrapped.nonce} if wrapped.nonce else env
        return await self._start(Start(argv=wrapped.argv, env=marked, user=user, terminal=terminal))

    async def run_inline(self, action: Exec, *, user: str | None = None) -> Observation:
        """Run a script of ours (`sh -c TEXT sh ARG...`), as root if not said, in one process: for when nothing else works."""
        wrapped = inline(action.argv[2], *action.argv[4:])
        wire = await self.open(wrapped, env={}, user=self._root if user is None else user)
        stream, said = Stream(wrapped, "stdout"), b""
        try:
            await wire.write(wrapped.preamble)
            while stream.ended is None and (frame := await wire.frame()) is not None:
                said += stream.feed(frame[1])
        except BrokenPipeError:
            pass  # as when it ends without its last word
        finally:
            wire.close()
        if stream.ended is None:
            reason = (said + stream.rest()).decode("utf-8", "replace").strip()
            raise await self.lost(f"nothing runs in the sandbox any more: {reason or 'its exec said nothing'}")
        return Observation(exit_code=stream.ended.exit_code, stdout=said)

    async def lost(self, otherwise: str) -> SandboxLost:
        """The error to raise; `otherwise`: what the exec itself showed."""
        return SandboxLost(otherwise) if self._lost is None else await self._lost(otherwise)

    async def counts(self) -> Counts:
        """What the limits did so far. An answer also shows that the sandbox lives; without one it is SandboxLost."""
        return Counts.parse((await self.run_inline(Exec(("sh", "-c", COUNT, "sh")))).stdout)
