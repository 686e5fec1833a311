"""`vm` as a Substrate."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from excise.handles import environment, finish
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.vm import abilities, boot
from excise.substrates.vm.entering import Entrance
from excise.substrates.vm.handle import VmHandle
from excise.substrates.vm.making import Machines, Options, Started, margin
from excise.substrates.vm.ssh import Keys, SshClient, connect, library

_DEFAULT = Options()


class VmSubstrate(OnThisMachine[VmHandle]):
    """Machines that are entered by ssh, and end with the process that made them."""

    def __init__(self, *, image: str = _DEFAULT.image, memory: int = _DEFAULT.memory, cpus: int = _DEFAULT.cpus) -> None:
        options = Options(image=image, memory=memory, cpus=cpus)
        self.address = options.words("vm")
        self._machines = Machines(options)
        self._sandboxes = Sandboxes[VmHandle]("vm")

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
            files = {**keys.files(), "sshd_config": boot.text("sshd_config")}
            made = await self._machines.start(directory, start, service="ssh", files=files, lease_s=lease_s)
            try:
                connection = await made.answered(connect(made.way, keys), until_s)
                handle = self._handle(made, connection, capabilities, start)
                await handle.begin()
            except BaseException:
                made.way.close()
                await finish(made.life.close())
                raise
            return handle

        return await self._sandboxes.once(request_id, deadline_s, make)

    def _handle(self, made: Started, connection: SshClient, capabilities: Capabilities, spec: Spec) -> VmHandle:
        entrance = Entrance(
            root=made.image.root,
            workdir=made.workdir,
            user=spec.user or made.image.user,
            variables=environment(made.image.env, spec),
        )
        return VmHandle(
            made.life,
            connection,
            entrance,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            on_close=self._sandboxes.forget,
        )
