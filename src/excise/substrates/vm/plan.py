"""What a machine is made of, from a spec: pure data."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise.spec import Limits
from excise.substrates.vm import boot
from excise.vmm.accel import Accel, processors

MEBIBYTE = 1 << 20
RESERVE_BYTES = 192 * MEBIBYTE
"""What the machine's own system may take beside the sandbox's memory."""
EMULATED = "norandmaps"
"""QEMU keeps its translations by address: where libraries lie elsewhere in each process, each is translated anew."""
COMMAND_LINE = (
    *("console=ttyS0", "quiet", "panic=-1", "random.trust_cpu=on"),
    "no_timer_check",  # a host that is busy at the wrong moment makes the kernel believe that its timer is broken, and panic
    *("systemd.unit=excise.target", "systemd.show_status=false"),
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's parts, as files here and numbers."""

    kernel: Path
    initrd: Path
    system: Path
    image: Path
    private: Path
    accel: Accel
    memory_bytes: int
    cpus: int
    ways: tuple[str, ...]
    """Chardevs, each of which is a port with a name of ours inside."""

    def arguments(self) -> tuple[str, ...]:
        """QEMU's: an ordinary machine with its devices on a PCI bus, as clouds have them."""
        line = (*COMMAND_LINE, EMULATED) if self.accel.name == "tcg" else COMMAND_LINE
        disks = ((self.system, True), (self.image, True), (self.private, False))
        return (
            *("-M", "q35", *self.accel.arguments(), *processors(self.accel.name, self.cpus)),
            *("-m", f"{math.ceil(self.memory_bytes / MEBIBYTE)}M"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd), "-append", " ".join(line)),
            *("-serial", "chardev:console", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *(part for way in self.ways for part in ("-device", f"virtserialport,chardev={way},name=excise.{way}")),
            *(part for number, (path, fixed) in enumerate(disks) for part in _disk(number, path, fixed=fixed)),
        )


def _disk(number: int, path: Path, *, fixed: bool) -> Sequence[str]:
    # A write that the host's full disk refuses stops the machine, which is then told apart from the sandbox's own full disk.
    how = "readonly=on" if fixed else "discard=unmap,werror=stop,rerror=stop"
    name = str(path).replace(",", ",,")
    return ("-drive", f"if=none,id=disk{number},format=raw,file={name},{how}", "-device", f"virtio-blk-pci,drive=disk{number}")


def config(workdir: str, limits: Limits) -> str:
    """What the machine's first program reads, as a shell does."""
    # Where a full disk must be told, room is taken when it is written to: what was only put aside would look free again.
    disk = ",nodelalloc" if limits.asked() & {"disk_bytes", "inodes"} else ""
    return f"EXCISE_WORKDIR={shlex.quote(workdir)}\nEXCISE_DISK={disk}\n"


def units(ways: Sequence[str], limits: Limits) -> dict[str, bytes]:
    """The machine's own: what it boots to, the ways in (`ssh`, `guest`), and the sandbox's limits as a slice."""
    wanted = "".join(f"Wants=excise-{way}.service\n" for way in ways)
    return {
        "excise.target": boot.text("excise.target") + wanted.encode(),
        "sandbox.service": boot.text("sandbox.service"),
        "sandbox.slice": _slice(limits).encode(),
        **{f"excise-{way}.service": boot.text(f"{way}.service") for way in ways},
    }


def _slice(limits: Limits) -> str:
    lines = ["[Unit]", "Description=The sandbox", "DefaultDependencies=no", "[Slice]"]
    lines += ["MemoryAccounting=yes", "TasksAccounting=yes", "CPUAccounting=yes"]
    if limits.memory_bytes is not None:
        lines += [f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0"]
    if limits.pids is not None:
        lines.append(f"TasksMax={limits.pids}")
    if limits.cpus is not None:
        lines.append(f"CPUQuota={max(1, round(limits.cpus * 100))}%")
    return "\n".join(lines) + "\n"


def memory_bytes(limits: Limits, otherwise: int) -> int:
    """Of the whole machine: what the sandbox may use, and its system's own."""
    return (limits.memory_bytes if limits.memory_bytes is not None else otherwise) + RESERVE_BYTES


def cpus(limits: Limits, otherwise: int) -> int:
    return max(1, math.ceil(limits.cpus)) if limits.cpus is not None else otherwise
