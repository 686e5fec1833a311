"""Commands and files of a sandbox that has nothing but an exec."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from excise.action import Command, Exec, FileAction, Observation, Shell
from excise.guestless.files import run_file
from excise.guestless.inside import Inside
from excise.guestless.process import GuestlessProcess, killed, wrapped
from excise.handles import finish, observe
from excise.substrate import Process


class Held(Process, Protocol):
    """A Process that is let go of when nobody needs it any more."""

    def release(self) -> None: ...


class ByExec(ABC):
    """What a Handle's `run` comes to where a program can be started and nothing else."""

    @abstractmethod
    async def start(self, action: Command, *, interactive: bool = True) -> Held:
        """Start a command; `interactive` leaves its stdin open for the caller to write."""

    async def run(self, action: Command | FileAction) -> Observation:
        if not isinstance(action, Exec | Shell):
            return await run_file(self._run, action)
        return await self._run(action)

    async def _run(self, action: Command) -> Observation:
        """Cancelled or failed, nothing the action started outlives the call."""
        process = await self.start(action, interactive=False)
        try:
            return await observe(process, action.keep)
        except BaseException:
            await finish(killed(process))
            raise
        finally:
            process.release()


class Actions(ByExec):
    """By way of the wrapping shell, for tools that end late or lose what detached."""

    def __init__(
        self, inside: Inside, *, variables: Callable[[Command], dict[str, str]], half_closes: bool = True, limited: bool = False
    ) -> None:
        self._inside = inside
        self._variables = variables
        self._half_closes = half_closes
        self.limited = limited
        """Watch what the sandbox's limits do, so that their doing is told from the program's."""

    async def start(self, action: Command, *, interactive: bool = True) -> GuestlessProcess:
        given = wrapped(action, interactive=interactive, half_closes=self._half_closes, limited=self.limited)
        process = GuestlessProcess(self._inside, action, given)
        await process.begin(self._variables(action))
        return process

    def let_go(self) -> tuple[GuestlessProcess, ...]:
        """The sandbox is being closed: actions in flight end as lost. What is still under way is returned, to be settled."""
        self._inside.closed = True
        live = tuple(self._inside.live)
        for process in live:
            process.release()
        return live
