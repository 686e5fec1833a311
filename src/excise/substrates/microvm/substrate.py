"""`microvm`: machines that begin as copies of one that has booted, so that a create costs a copy's page tables, not a boot."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from excise.guest.programs import program
from excise.handles import finish
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.storage.background import in_thread
from excise.storage.debian import NAME
from excise.storage.image import kind, resolve
from excise.storage.store import PATH, Image
from excise.substrate import Capabilities, Snapshot, require
from excise.substrates.microvm import machines, templates, under_firecracker
from excise.substrates.microvm.handle import MicrovmHandle
from excise.substrates.microvm.machines import Running
from excise.substrates.microvm.plan import Host, Plan, plan
from excise.substrates.microvm.snapshots import Kept, Snapshots
from excise.substrates.microvm.templates import Templates
from excise.vmm import firecracker, qemu
from excise.vmm.accel import Accel, accel
from excise.vmm.disk import root_disk
from excise.vmm.initrd import SMALLEST, initrd
from excise.vmm.kernel import kernel
from excise.vmm.tools import find, run

_SHARE = 0.8
"""Of a deadline: what is left is for the error that says what the console said."""


class MicrovmSubstrate(EndsWithItsMaker[MicrovmHandle]):
    """QEMU's smallest machine. They end with the process that made them."""

    def __init__(
        self,
        *,
        cold: bool = False,
        kernel: str | None = None,
        image: str = NAME,
        vmm: Literal["qemu", "firecracker"] = "qemu",
    ) -> None:
        """`cold`: boot each machine. `kernel`: a bzImage. `image`: what stands for "host", which no machine can show."""
        shown = {"cold": "1" if cold else "", "kernel": kernel or "", "image": "" if image == NAME else image}
        asked = {**shown, "vmm": "" if vmm == "qemu" else vmm}
        options = "&".join(f"{key}={value}" for key, value in asked.items() if value)
        self.address = f"microvm?{options}" if options else "microvm"
        self._cold, self._kernel, self._image, self._vmm = cold, kernel, image, vmm
        self._templates = Templates()
        self._snapshots = Snapshots(self.address)
        self._requests = Requests[MicrovmHandle](self.address)
        self._probed: asyncio.Task[tuple[Host, Capabilities]] | None = None

    # ---- what there is

    async def probe(self) -> Capabilities:
        return (await self._found())[1]

    async def _found(self) -> tuple[Host, Capabilities]:
        """Found once; several who ask at once wait for the same."""
        if self._probed is None or (self._probed.done() and (self._probed.cancelled() or self._probed.exception())):
            self._probed = asyncio.ensure_future(self._find())
        return await asyncio.shield(self._probed)

    async def _find(self) -> tuple[Host, Capabilities]:
        version = await qemu.version()
        find("mksquashfs", "squashfs-tools")
        if kind(self._image) == "built":
            await resolve(self._image)  # what stands for "host" must be there
        booted = await kernel(self._kernel)
        helped = await accel(booted)
        # A counter that this machine does not have is found out by the kernel inside.
        clock_khz = int((await run(str(program("excise-boot")))).strip() or 0)
        host = Host(
            kernel=str(booted.image),
            release=booted.release,
            initrd=str(await initrd(booted, SMALLEST if self._vmm == "qemu" else firecracker.MODULES)),
            accel=helped.name,
            qemu=version,
            clock_khz=round(clock_khz, -3),
        )
        found = _capabilities(host, helped)
        if self._vmm == "firecracker":
            under_firecracker.require(host, helped.why)
            # A call ends when its machine is saved: states are none of its abilities.
            versions = {**found.versions, "firecracker": firecracker.LABEL}
            found = msgspec.structs.replace(found, snapshot=None, versions=versions)
        return host, found

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> MicrovmHandle:
        return await self._requests.once(request_id, deadline_s, lambda: self._make(start, lease_s, _SHARE * deadline_s))

    async def _make(self, start: Spec | Snapshot, lease_s: float, deadline_s: float) -> MicrovmHandle:
        _, capabilities = await self._found()
        spec = start if isinstance(start, Spec) else start.spec
        require(spec, capabilities, self.address)
        if isinstance(start, Snapshot):
            kept = self._snapshots.find(start)
            running = await machines.copy(kept.record.plan, kept.directory)
            inside = Inside(kept.record.env, kept.record.workdir, kept.record.user, kept)
            return await self._handed(running, capabilities, spec, inside, lease_s)
        chosen, image = await self.kind(spec)
        running = await self._begun(chosen, deadline_s)
        inside = Inside({"PATH": PATH, **image.env}, spec.workdir or image.workdir or "/", spec.user or image.user)
        return await self._handed(running, capabilities, spec, inside, lease_s)

    async def kind(self, spec: Spec) -> tuple[Plan, Image]:
        """The kind of machine that `spec` is made into, and its image."""
        host, _ = await self._found()
        # A machine has a kernel of its own, and sees nothing of this one's: "host" is another image there.
        image = await resolve(self._image if spec.image == "host" else spec.image)
        return plan(spec, host, str(await root_disk(image))), image

    async def _begun(self, chosen: Plan, deadline_s: float) -> Running:
        if self._vmm == "firecracker":
            return await under_firecracker.begun(chosen, deadline_s, cold=self._cold)
        if not self._cold:
            return await machines.copy(chosen, await self._templates.get(chosen, deadline_s))
        running = await machines.boot(chosen)
        try:
            running.link.greet({"PATH": PATH}, "/", None)
            await machines.greeted(running, deadline_s)
        except BaseException:
            await finish(running.close())
            raise
        return running

    async def _handed(
        self, running: Running, capabilities: Capabilities, spec: Spec, inside: "Inside", lease_s: float
    ) -> MicrovmHandle:
        async def dispose() -> None:
            self._requests.forget(handle)
            await handle.running.close()

        try:
            handle = MicrovmHandle(
                running,
                self._snapshots,
                inside.start,
                spec.image,
                lease_s,
                id=f"microvm-{uuid.uuid4().hex[:12]}",
                address=self.address,
                capabilities=capabilities,
                spec=spec,
                image_env=inside.env,
                cwd=inside.workdir,
                user=inside.user,
                dispose=dispose,
            )
        except BaseException:
            await finish(running.close())
            raise
        return handle

    # ---- the end

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return self._snapshots.all()

    async def discard(self, snapshot: Snapshot) -> None:
        self._snapshots.discard(snapshot.id)

    async def collect(self) -> tuple[str, ...]:
        return (*await self._snapshots.collect(), *await in_thread(lambda _: templates.collect()))

    async def close(self) -> None:
        """Close every sandbox, and end what is being prepared."""
        await self._requests.close()
        await self._templates.close()
        if self._probed is not None:
            self._probed.cancel()
            await asyncio.gather(self._probed, return_exceptions=True)
            self._probed = None
        self._snapshots.close()


class Inside(NamedTuple):
    """What actions have in a machine, unless they say otherwise; and the snapshot it was copied from."""

    env: Mapping[str, str]
    workdir: str
    user: str | None
    start: Kept | None = None


def _capabilities(host: Host, helped: Accel) -> Capabilities:
    return Capabilities(
        kernel="own",
        isolates=frozenset({"files", "processes", "network", "ipc", "users"}),
        snapshot="processes",
        adopts=frozenset({"secrets"}),
        stream=True,
        sessions=True,
        pty=True,
        users=True,
        pause=True,
        ports=True,
        background=True,
        signals=True,
        guest_clock=True,
        limits=frozenset({"memory_bytes", "cpus", "pids", "disk_bytes", "inodes"}),
        network=frozenset({"none"}),
        versions={"qemu": host.qemu, "kernel": host.release, "accel": helped.words()},
    )
