"""`vm` as a Substrate."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from excise.handles import finish
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.network.client import Proxies
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.vm import abilities
from excise.substrates.vm.handle import VmHandle
from excise.substrates.vm.making import Machines, Options, Started, margin
from excise.substrates.vm.ssh import Keys, SshClient, connect, library
from excise.substrates.vm.way_out import WayOut

_DEFAULT = Options()


class VmSubstrate(OnThisMachine[VmHandle]):
    """Machines that are entered by ssh, and end with the process that made them."""

    def __init__(self, *, image: str = _DEFAULT.image, memory: int = _DEFAULT.memory, cpus: int = _DEFAULT.cpus) -> None:
        options = Options(image=image, memory=memory, cpus=cpus)
        self.address = options.words("vm")
        self._machines = Machines(options)
        self._sandboxes = Sandboxes[VmHandle]("vm")
        self._proxies = Proxies()

    async def probe(self) -> Capabilities:
        library()
        return abilities.by_ssh(await self._machines.found())

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> VmHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots")
        until_s = asyncio.get_running_loop().time() + deadline_s - margin(deadline_s)

        async def make(directory: Path) -> VmHandle:
            capabilities = await self.probe()
            require(start, capabilities, self.address)
            keys = Keys()
            made = await self._machines.start(directory, start, ways={"ssh": keys.files()}, lease_s=lease_s)
            try:
                connection = await made.answered(connect(made.ways["ssh"], keys), until_s)
                handle = self._handle(made, connection, capabilities, start)
            except BaseException:
                await finish(made.undo())
                raise
            try:
                await handle.begin()
            except BaseException:
                await finish(handle.close())
                raise
            return handle

        return await self._sandboxes.once(request_id, deadline_s, make)

    def _handle(self, made: Started, connection: SshClient, capabilities: Capabilities, spec: Spec) -> VmHandle:
        way = WayOut(self._proxies, connection, made.life)
        forget = self._sandboxes.forget
        return VmHandle(made, connection, spec, way, address=self.address, capabilities=capabilities, on_close=forget)

    async def close(self) -> None:
        await super().close()
        await self._proxies.close()
