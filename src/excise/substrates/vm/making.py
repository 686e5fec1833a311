"""How machines are made: what all of one substrate share, found once, and each one's own files."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from excise.errors import CreateError, SpecError
from excise.guest.carrier import pair
from excise.spec import Spec
from excise.storage import debian
from excise.storage.image import hold, kind
from excise.storage.store import Image
from excise.substrates.vm import boot, plan
from excise.substrates.vm.life import Life
from excise.vmm.accel import Accel, accel
from excise.vmm.disk import private_disk, root_disk
from excise.vmm.kernel import Kernel, kernel
from excise.vmm.qemu import Machine, version

T = TypeVar("T")
DISK_BYTES = 16 << 30
"""Of a sandbox that says no limit: sparse, so that it takes what is written to it."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What an address may say."""

    image: str = debian.NAME
    """For a spec that names none: a machine of its own cannot show this machine's directories, as `host` does."""
    memory: int = 512
    """MiB, where the spec has no limit."""
    cpus: int = 1

    def words(self, name: str) -> str:
        """The address."""
        defaults = Options()
        said = [
            f"{field}={getattr(self, field)}"
            for field in self.__struct_fields__
            if getattr(self, field) != getattr(defaults, field)
        ]
        return f"{name}?{'&'.join(said)}" if said else name


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What machines are made with here."""

    kernel: Kernel
    accel: Accel
    qemu: str
    initrd: Path
    system: Path

    def versions(self) -> dict[str, str]:
        return {"qemu": self.qemu, "accel": self.accel.words(), "linux": self.kernel.release}


class Machines:
    """Makes the machines of one substrate."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._found: Found | None = None

    async def found(self) -> Found:
        """Tried once: whatever is missing is a SubstrateError or SpecError that names it."""
        if self._found is None:
            if self.options.memory < 1 or self.options.cpus < 1:
                raise SpecError("vm: memory= is in MiB and cpus= a whole number, both from 1 on")
            system = debian.built(debian.MACHINE)
            qemu = await version()
            used = await kernel()
            self._found = Found(
                kernel=used,
                accel=await accel(used),
                qemu=qemu,
                initrd=await boot.shared(used, system),
                system=await root_disk(system),
            )
        return self._found

    async def start(
        self, directory: Path, spec: Spec, *, service: str, files: Mapping[str, bytes], lease_s: float
    ) -> "Started":
        """A machine that has begun to boot, with `service` as the way in, and our end of that way."""
        found = await self.found()
        image, pin = await hold(self._image(spec))
        try:
            workdir = spec.workdir or image.workdir
            private = directory / "private"
            disk = await root_disk(image)
            await private_disk(private, spec.limits.disk_bytes or DISK_BYTES, spec.limits.inodes)
            initrd = directory / "initrd"
            given = boot.own(plan.config(workdir), plan.units(service, spec.limits), files)
            await asyncio.to_thread(lambda: _join(found.initrd, given, initrd))
            made = plan.Plan(
                kernel=found.kernel.image,
                initrd=initrd,
                system=found.system,
                image=disk,
                private=private,
                accel=found.accel.arguments(),
                memory_bytes=plan.memory_bytes(spec.limits, self.options.memory << 20),
                cpus=plan.cpus(spec.limits, self.options.cpus),
                ports={"way": plan.PORT},
            )
            ours, theirs = pair()
            try:
                machine = await Machine.start(
                    (*made.arguments(), "-chardev", f"socket,id=way,fd={theirs.fileno()}"),
                    link=False,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
        except BaseException:
            pin.close()
            raise
        return Started(Life(machine, directory, pin, spec, lease_s), image, workdir, ours)

    def _image(self, spec: Spec) -> str:
        name = self.options.image if spec.image == "host" else spec.image
        if kind(name) == "host":
            raise SpecError("a machine of its own cannot show this machine's directories, as image='host' does: name another")
        return name


class Started(NamedTuple):
    """A machine on its way up, and our end of the way into it."""

    life: Life
    image: Image
    workdir: str
    way: socket.socket

    async def answered(self, work: Awaitable[T], until_s: float) -> T:
        """What `work` leads to; a CreateError with the console's tail if the machine ends before, or it is too late."""
        try:
            async with asyncio.timeout_at(until_s):
                return await self.life.machine.until(work, "the machine did not boot")
        except TimeoutError:
            self.life.machine.console.keep(self.life.id)
            raise CreateError(f"the machine did not boot in time: {self.life.machine.why()}") from None


def _join(shared: Path, own: bytes, target: Path) -> None:
    """The file QEMU loads. It holds keys: nobody else may read it."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        data = shared.read_bytes()
        file.write(data + b"\0" * (-len(data) % 4) + own)


def margin(deadline_s: float) -> float:
    """How long before its caller gives up a boot is given up here, so that the error has the console's tail."""
    return min(1.0, deadline_s / 20)
