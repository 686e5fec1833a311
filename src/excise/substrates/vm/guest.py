"""`vm+guest`: the same machines, with the guest as PID 1 of the sandbox and its link on a virtio port."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from excise.guest.carrier import SocketCarrier
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.handles import finish
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.vm import abilities
from excise.substrates.vm.life import Life
from excise.substrates.vm.making import Machines, Options, margin

_DEFAULT = Options()


class VmGuestHandle(GuestHandle):
    """A machine whose sandbox has the guest as PID 1."""

    def __init__(self, life: Life, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._life = life
        life.at_end(self.link.fail)

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
            files = {"guest": await asyncio.to_thread(program("excise-guest").read_bytes)}
            made = await self._machines.start(directory, start, service="guest", files=files, lease_s=lease_s)

            async def dispose() -> None:
                self._sandboxes.forget(handle)
                await made.life.close()

            try:
                # Greeted at once: the greeting waits in the port while the machine boots.
                handle = VmGuestHandle(
                    made.life,
                    Link(SocketCarrier(made.way)),
                    id=made.life.id,
                    address=self.address,
                    capabilities=capabilities,
                    spec=start,
                    image_env=made.image.env,
                    cwd=made.workdir,
                    user=start.user or made.image.user,
                    dispose=dispose,
                )
            except BaseException:
                made.way.close()
                await finish(made.life.close())
                raise
            try:
                await made.answered(handle.alive(), until_s)
            except BaseException:
                await finish(handle.close())
                raise
            return handle

        return await self._sandboxes.once(request_id, deadline_s, make)
