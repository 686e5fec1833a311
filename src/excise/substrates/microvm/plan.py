"""What a machine is made of, as data: all that decides what it is like when its guest first answers."""

import hashlib
import math

import msgspec

from excise.adoption import ABILITY
from excise.errors import SpecError
from excise.spec import Limits, Spec
from excise.vmm.accel import processors

MEMORY_BYTES = 1 << 30
"""Of a machine whose spec says nothing of it. Only what it touches is ever taken from the host."""
OVERHEAD_BYTES = 160 << 20
"""The kernel's own, the guest's, and what a disk in memory keeps of names: not part of what a spec limits."""
_LEAST_BYTES = 4 << 20
_MEBIBYTE = 1 << 20
_PERIOD_US = 100_000
_KERNEL = "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable random.trust_cpu=on"
# Copying a byte at a time, which these promise to do fast, is the slowest thing an emulated processor can be asked for.
_EMULATED = "max,erms=off,fsrm=off"
# What QEMU has translated is used again only at the address it was at: programs lie where they lay.
_SAME_PLACES = " norandmaps"
_WIPES = " init_on_free=1"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all machines that a substrate makes here."""

    kernel: str
    """Paths are texts: a record of this is kept with every snapshot."""
    release: str
    initrd: str
    accel: str
    qemu: str
    """Its version: what one wrote, another may not read."""
    clock_khz: int = 0
    """Of the processor's counter; 0: the kernel inside finds out."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of machine."""

    host: Host
    disk: str
    memory_bytes: int
    """Of the machine: more than what a spec's programs may have."""
    cpus: int
    limits: Limits
    wipes: bool = False
    """Memory is zeroed when it is freed: of a machine that knows secrets, so that a snapshot of its files holds none."""

    def key(self) -> str:
        """Equal for machines that are alike: what one of them was saved as, all of them can begin with."""
        made = (self.command_line(), *self.devices())
        return hashlib.sha256(msgspec.json.encode((self, made))).hexdigest()[:32]

    def command_line(self) -> str:
        """The kernel's: what it needs, and our boot program's options."""
        cpus = self.limits.cpus
        asked = {
            "disk_bytes": self.limits.disk_bytes,
            "inodes": self.limits.inodes,
            "memory_bytes": self.limits.memory_bytes,
            "pids": self.limits.pids,
            "cpu_us": None if cpus is None else max(1000, int(cpus * _PERIOD_US)),
        }
        emulated = self.host.accel == "tcg"
        clock = f" tsc_early_khz={self.host.clock_khz}" if emulated and self.host.clock_khz else ""
        clock += _SAME_PLACES if emulated else ""
        clock += _WIPES if self.wipes else ""
        return _KERNEL + clock + "".join(f" excise.{name}={value}" for name, value in asked.items() if value is not None)

    def called(self, port: int) -> str:
        """The kernel's command line under a monitor that has no serial port for the link, and no buses to look for."""
        return f"{self.command_line()} pci=off excise.vsock={port}"

    def devices(self) -> tuple[str, ...]:
        """QEMU's arguments for the machine itself. Those of a copy must be the same."""
        return (
            *("-M", "microvm,memory-backend=memory,pcie=off,usb=off", "-m", f"{self.memory_bytes // _MEBIBYTE}M"),
            *("-accel", self.host.accel, "-cpu", "host" if self.host.accel == "kvm" else _EMULATED),
            *processors(self.host.accel, self.cpus),
            *("-serial", "chardev:console"),
            *("-drive", f"id=root,file={_escaped(self.disk)},format=raw,if=none,read-only=on,file.locking=off"),
            *("-device", "virtio-blk-device,drive=root"),
            *("-device", "virtio-serial-device", "-device", "virtserialport,chardev=link,name=excise"),
        )

    def memory(self, path: str) -> tuple[str, ...]:
        """Memory that begins as the file at `path`, which is never written to: each machine has its own pages over it."""
        return (
            "-object",
            f"memory-backend-file,id=memory,size={self.memory_bytes // _MEBIBYTE}M,mem-path={_escaped(path)},share=off",
        )

    def boot(self) -> tuple[str, ...]:
        return ("-kernel", self.host.kernel, "-initrd", self.host.initrd, "-append", self.command_line())


def _escaped(path: str) -> str:
    return path.replace(",", ",,")


def plan(spec: Spec, host: Host, disk: str) -> Plan:
    """The machine for `spec`."""
    limits = spec.limits
    if limits.memory_bytes is not None and limits.memory_bytes < _LEAST_BYTES:
        raise SpecError(f"limits.memory_bytes={limits.memory_bytes} is too little for any program: raise it")
    wanted = MEMORY_BYTES if limits.memory_bytes is None else limits.memory_bytes + OVERHEAD_BYTES
    return Plan(
        host=host,
        disk=disk,
        memory_bytes=-(-wanted // _MEBIBYTE) * _MEBIBYTE,
        cpus=max(1, math.ceil(limits.cpus or 1)),
        limits=limits,
        wipes=bool(spec.secrets) or ABILITY in spec.needs,
    )
