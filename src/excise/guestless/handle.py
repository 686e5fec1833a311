"""What is the same for every Handle whose actions are execs, whatever starts them."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import Generic, TypeVar

from excise.action import Action, Batch, Command, Exec, Observation, Shell
from excise.errors import SandboxLost
from excise.guestless.actions import ByExec
from excise.guestless.inside import Inside
from excise.guestless.tar import download, upload
from excise.handles import Undeclared, run_batch
from excise.substrate import Capabilities, Process, require_command

A = TypeVar("A", bound=ByExec)


class ExecHandle(Undeclared, Generic[A]):
    """Commands, files and streams of files by one exec each. Who extends it says what an exec is, and how a sandbox ends."""

    _address: str
    _capabilities: Capabilities
    _inside: Inside
    _actions: A

    async def run(self, action: Action) -> Observation:
        if isinstance(action, Batch):
            return await run_batch(self, action)
        self._check(action)
        return await self._actions.run(action)

    async def start(self, action: Command) -> Process:
        self._check(action)
        return await self._actions.start(action)

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await upload(self, path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return download(self, path)

    def _check(self, action: Action) -> None:
        self._check_open()
        if isinstance(action, Exec | Shell):
            require_command(action, self._capabilities, self._address)

    def _check_open(self) -> None:
        if self._inside.closed:
            raise SandboxLost("the sandbox is closed")
