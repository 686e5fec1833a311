"""`vm+guest`: the same machines, with the guest as PID 1 of the sandbox and its link on a virtio port."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from excise.guest.carrier import SocketCarrier
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.handles import finish
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.network.client import Phases, Proxies, phases
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.vm import abilities
from excise.substrates.vm.life import ENDING_S, Life
from excise.substrates.vm.making import Machines, Options, Started, margin
from excise.substrates.vm.ssh import Keys, SshClient, connect
from excise.substrates.vm.way_out import WayOut

_DEFAULT = Options()


class _LifeCarrier(SocketCarrier):
    """A link whose end is told with what the machine's own end says: QEMU closes it a moment before it has ended."""

    def __init__(self, sock: socket.socket, life: Life) -> None:
        super().__init__(sock)
        self._life = life

    def _over(self, reason: str) -> None:
        ended = self._ended
        self.close()
        said = self._loop.call_later(ENDING_S, lambda: ended(reason))
        self._life.machine.ended.add_done_callback(lambda _: (said.cancel(), ended(self._life.why())))


class VmGuestHandle(GuestHandle):
    """A machine whose sandbox has the guest as PID 1."""

    def __init__(self, life: Life, asked: Spec, network: Phases, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._life = life
        self._asked = asked
        self._network = network
        self._way: WayOut | None = None
        self._connection: SshClient | None = None
        life.at_end(self.link.fail)

    async def open_way(self, connection: SshClient, proxies: Proxies) -> None:
        """The way out of the sandbox, as its steps have it."""
        self._connection = connection
        self._way = WayOut(proxies, connection, self._life)
        await self._way.change(self._network.build)

    async def close_way(self) -> None:
        if self._way is not None:
            await self._way.close()
        if self._connection is not None:
            self._connection.abort()

    # ---- another spec's

    @property
    def _made_of(self) -> Spec:
        return self._asked

    def _remain(self, spec: Spec) -> None:
        super()._remain(spec)
        self._asked = spec

    async def _take_on(self, spec: Spec) -> None:
        self._asked, self._network = spec, phases(spec, built=not spec.all_steps())
        await self._become(self._network.dressed(spec, {})[0], self._image_env)
        if self._way is not None:
            await self._way.change(self._network.build)

    async def _built(self) -> None:
        if self._way is not None and self._network.build != self._network.run:
            await self._way.change(self._network.run)

    # ---- life

    def console(self) -> str:
        """The last lines that the machine has written to it."""
        return self._life.machine.console.tail()

    async def pause(self) -> None:
        self.link.check()
        await self._life.machine.pause()
        self.link.paused = True

    async def resume(self) -> None:
        self.link.check()
        await self._life.machine.resume()
        self.link.paused = False

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        self._life.renew(lease_s)


class VmGuestSubstrate(OnThisMachine[VmGuestHandle]):
    """Machines that end with the process that made them."""

    def __init__(self, *, image: str = _DEFAULT.image, memory: int = _DEFAULT.memory, cpus: int = _DEFAULT.cpus) -> None:
        options = Options(image=image, memory=memory, cpus=cpus)
        self.address = options.words("vm+guest")
        self._machines = Machines(options)
        self._sandboxes = Sandboxes[VmGuestHandle]("vmguest")
        self._proxies = Proxies()

    async def probe(self) -> Capabilities:
        program("excise-guest")
        return abilities.by_guest(await self._machines.found())

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> VmGuestHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots")
        until_s = asyncio.get_running_loop().time() + deadline_s - margin(deadline_s)

        async def make(directory: Path) -> VmGuestHandle:
            capabilities = await self.probe()
            require(start, capabilities, self.address)
            network = phases(start, built=not start.all_steps())
            # The guest has no way out to offer: where the spec has a network, an sshd beside it has.
            keys = None if (network.build.mode, network.run.mode) == ("none", "none") else Keys()
            ways = {"guest": {"guest": await asyncio.to_thread(program("excise-guest").read_bytes)}}
            if keys is not None:
                ways["ssh"] = keys.files()
            made = await self._machines.start(directory, start, ways=ways, lease_s=lease_s)
            try:
                handle = self._handle(made, network, capabilities, start)
            except BaseException:
                await finish(made.undo())
                raise
            try:
                await made.answered(handle.alive(), until_s)
                if keys is not None:
                    connection = await made.answered(connect(made.ways["ssh"], keys), until_s)
                    await handle.open_way(connection, self._proxies)
            except BaseException:
                await finish(handle.close())
                raise
            return handle

        return await self._sandboxes.once(request_id, deadline_s, make)

    def _handle(self, made: Started, network: Phases, capabilities: Capabilities, asked: Spec) -> VmGuestHandle:
        async def dispose() -> None:
            self._sandboxes.forget(handle)
            await handle.close_way()
            await made.undo()

        spec, env = network.dressed(asked, made.image.env)
        # Greeted at once: the greeting waits in the port while the machine boots.
        handle = VmGuestHandle(
            made.life,
            asked,
            network,
            Link(_LifeCarrier(made.ways["guest"], made.life)),
            id=made.life.id,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            image_env=env,
            cwd=made.workdir,
            user=spec.user or made.image.user,
            dispose=dispose,
        )
        return handle

    async def close(self) -> None:
        await super().close()
        await self._proxies.close()
