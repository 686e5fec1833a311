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

    async def start(self, directory: Path, spec: Spec, *, ways: Mapping[str, Mapping[str, bytes]], lease_s: float) -> "Started":
        """A machine that has begun to boot. `ways`: into it, each with the files it needs in there."""
        found = await self.found()
        image, pin = await hold(self._image(spec))
        try:
            workdir = spec.workdir or image.workdir
            files = {name: data for given in ways.values() for name, data in given.items()}
            own = boot.own(plan.config(workdir, spec.limits), plan.units(tuple(ways), spec.limits), files)
            made = plan.Plan(
                kernel=found.kernel.image,
                initrd=directory / "initrd",
                system=found.system,
                image=await root_disk(image),
                private=directory / "private",
                accel=found.accel,
                memory_bytes=plan.memory_bytes(spec.limits, self.options.memory << 20),
                cpus=plan.cpus(spec.limits, self.options.cpus),
                ways=tuple(ways),
            )
            await private_disk(made.private, spec.limits.disk_bytes or DISK_BYTES, spec.limits.inodes)
            await asyncio.to_thread(lambda: _join(found.initrd, own, made.initrd))
            machine, ends = await _run(made)
        except BaseException:
            pin.close()
            raise
        return Started(Life(machine, directory, pin, spec, lease_s), image, workdir, ends)

    def _image(self, spec: Spec) -> str:
        name = self.options.image if spec.image == "host" else spec.image
        if kind(name) == "host":
            raise SpecError("a machine of its own cannot show this machine's directories, as image='host' does: name another")
        return name


class Started(NamedTuple):
    """A machine on its way up, and our ends of the ways into it."""

    life: Life
    image: Image
    workdir: str
    ways: Mapping[str, socket.socket]

    async def undo(self) -> None:
        """Nothing of it is left on return."""
        for end in self.ways.values():
            end.close()
        await self.life.close()

    async def answered(self, work: Awaitable[T], until_s: float) -> T:
        """What `work` leads to; a CreateError with the console's tail if the machine ends before, or it is too late."""
        try:
            async with asyncio.timeout_at(until_s):
                return await self.life.machine.until(work, "the machine did not boot")
        except TimeoutError:
            self.life.machine.console.keep(self.life.id)
            raise CreateError(f"the machine did not boot in time: {self.life.machine.why()}") from None


async def _run(made: plan.Plan) -> tuple[Machine, dict[str, socket.socket]]:
    """QEMU, and our ends of its ways."""
    pairs = {way: pair() for way in made.ways}
    try:
        given = (part for way, (_, end) in pairs.items() for part in ("-chardev", f"socket,id={way},fd={end.fileno()}"))
        passed = tuple(end.fileno() for _, end in pairs.values())
        machine = await Machine.start((*made.arguments(), *given), link=False, pass_fds=passed)
    except BaseException:
        for ours, _ in pairs.values():
            ours.close()
        raise
    finally:
        for _, theirs in pairs.values():
            theirs.close()
    return machine, {way: ours for way, (ours, _) in pairs.items()}


def _join(shared: Path, own: bytes, target: Path) -> None:
    """The file QEMU loads. It holds keys: nobody else may read it."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        data = shared.read_bytes()
        file.write(data + b"\0" * (-len(data) % 4) + own)


def margin(deadline_s: float) -> float:
    """How long before its caller gives up a boot is given up here, so that the error has the console's tail."""
    return min(1.0, deadline_s / 20)
