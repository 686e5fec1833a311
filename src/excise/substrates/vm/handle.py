"""One machine as a Handle, by ssh."""

import asyncio
from collections.abc import Callable

import msgspec

from excise.action import Action, Batch, Command, End, Observation
from excise.adoption import require_adoption
from excise.errors import SandboxLost
from excise.guestless.handle import ExecHandle
from excise.guestless.inside import Inside, Start
from excise.guestless.process import GuestlessProcess
from excise.handles import environment, finish, make_ready, prepare
from excise.network.client import phases
from excise.spec import Spec
from excise.substrate import Capabilities, Connection
from excise.substrates.vm.entering import Entrance, Placed
from excise.substrates.vm.making import Started
from excise.substrates.vm.ssh import SshClient, SshConnection, SshWire
from excise.substrates.vm.way_out import WayOut

_CALLERS_FAULT = ("unshare: failed to execute", "chroot: can't execute")
# By the machine's own stat, which no image can lack. Free blocks, then free inodes.
_ROOM = "exec /usr/bin/stat -f -c '%a %d' /sandbox"


class VmHandle(ExecHandle[Placed]):
    """Actions by exec on one kept-open connection, each with a shell of ours around it."""

    def __init__(
        self,
        made: Started,
        connection: SshClient,
        spec: Spec,
        way: WayOut,
        *,
        address: str,
        capabilities: Capabilities,
        on_close: Callable[["VmHandle"], None],
    ) -> None:
        self.id = made.life.id
        self._made = made
        self._life = made.life
        self.connection = connection
        """For whoever wants to speak ssh to the machine itself."""
        self._way = way
        self._address = address
        self._capabilities = capabilities
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._is_ready = self._adopted = self._paused = False
        self._become(spec)
        self._inside = Inside(self._exec, root="0", callers_fault=_CALLERS_FAULT, lost=self._life.lost)
        self._actions = Placed(
            made.workdir,
            self._inside,
            variables=self._variables,
            limited=bool(spec.limits.asked() & {"memory_bytes", "pids"}),
        )

    def _variables(self, action: Command) -> dict[str, str]:
        return environment(self.entrance.variables, self._spec, action)

    def _become(self, asked: Spec) -> None:
        """A sandbox of this spec; `begin` tells the machine."""
        self._asked = asked
        self._network = phases(asked, built=not asked.all_steps())
        self._spec, env = self._network.dressed(asked, self._made.image.env)
        self.entrance = Entrance(
            root=self._made.image.root,
            user=asked.user or self._made.image.user,
            variables=environment(env, self._spec),
        )

    async def _exec(self, start: Start) -> SshWire:
        return await self._open(self.entrance.command(start), terminal=start.terminal)

    async def _open(self, command: str, *, terminal: bool = False) -> SshWire:
        try:
            return await SshWire.open(self.connection, command, terminal=terminal, paused=lambda: self._paused)
        except SandboxLost as error:
            raise await self._life.lost(str(error)) from None

    async def begin(self) -> None:
        """Give the machine the variables that every action has, and the network of the spec's steps."""
        command, stdin = self.entrance.keep()
        wire = await self._open(command)
        await wire.write(stdin)
        await wire.close_stdin()
        while await wire.frame() is not None:
            pass
        wire.close()
        await self._way.change(self._network.build)

    # ---- actions

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._turn:
            self._check_open()
            if self._is_ready:
                return
            if self._adopted:
                await prepare(self, self._spec, self._built)
            else:
                await make_ready(self, self._spec, None, self._built)
            self._is_ready = True

    async def _built(self) -> None:
        if self._network.build != self._network.run:
            await self._way.change(self._network.run)

    async def alive(self) -> None:
        self._check_open()
        await self._inside.counts()

    async def adopt(self, spec: Spec) -> None:
        async with self._turn:
            self._check_open()
            require_adoption(self._asked, spec, self._capabilities, self._address)
            self._become(spec)
            await self.begin()
            self._adopted, self._is_ready = self._adopted or self._is_ready, False

    async def run(self, action: Action) -> Observation:
        seen = await super().run(action)
        if isinstance(action, Batch):
            return seen  # each of its parts came by here
        if self._spec.limits.asked() & {"disk_bytes", "inodes"} and await self._is_full(seen):
            return msgspec.structs.replace(seen, end=End.OUT_OF_DISK)
        return seen

    async def _is_full(self, seen: Observation) -> bool:
        """Whether a command failed while its disk was full. A file action's errno says it already."""
        if seen.end is not End.EXITED or not seen.exit_code or seen.errno is not None:
            return False
        wire, said = await self._open(_ROOM), b""
        while (frame := await wire.frame()) is not None:
            said += frame[1]
        wire.close()
        return "0" in said.decode("ascii", "replace").split()

    async def connect(self, port: int) -> Connection:
        self._check_open()
        try:
            return await SshConnection.open(self.connection, port)
        except SandboxLost as error:
            raise await self._life.lost(str(error)) from None

    # ---- life

    def console(self) -> str:
        """The last lines that the machine has written to it."""
        return self._life.machine.console.tail()

    async def pause(self) -> None:
        self._check_open()
        await self._life.machine.pause()
        self._paused = True

    async def resume(self) -> None:
        self._check_open()
        await self._life.machine.resume()
        self._paused = False

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        self._life.renew(lease_s)

    async def close(self) -> None:
        await finish(self._remove(self._actions.let_go()))

    async def _remove(self, live: tuple[GuestlessProcess, ...]) -> None:
        await self._way.close()
        self.connection.abort()
        await self._life.close()
        self._on_close(self)
        for process in live:
            await process.settled()
