"""The initial root: our boot program, the modules a root needs, and nothing else; a cpio that the kernel unpacks."""

import asyncio
import hashlib
import stat
from collections.abc import Iterable
from pathlib import Path

from excise.guest.programs import program
from excise.vmm.kept import kept
from excise.vmm.kernel import Kernel, modules

SMALLEST = ("virtio_mmio", "virtio_blk", "virtio_console", "squashfs", "overlay")
"""For a machine whose devices are not on a PCI bus, and whose root is written to in memory."""
PCI = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "squashfs", "overlay", "ext4")
"""For an ordinary machine with a disk of its own."""


async def initrd(kernel: Kernel, names: Iterable[str] = SMALLEST) -> Path:
    """The cpio with these modules of `kernel`; made once for each boot program and choice."""
    boot = program("excise-boot").read_bytes()
    wanted = tuple(names)
    choice = f"{kernel.release}\n{kernel.modules}\n{wanted}\n".encode()
    digest = hashlib.sha256(choice + hashlib.sha256(boot).digest()).hexdigest()

    async def fill(making: Path) -> None:
        await asyncio.to_thread(lambda: making.write_bytes(_packed(boot, modules(kernel, wanted))))

    return await kept(f"initrd-{digest[:32]}", fill)


def _packed(boot: bytes, loaded: list[tuple[str, bytes]]) -> bytes:
    order = "".join(f"{name}\n" for name, _ in loaded).encode()
    entries = [
        entry("dev", stat.S_IFDIR | 0o755),
        entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
        entry("init", stat.S_IFREG | 0o755, boot),
        entry("modules", stat.S_IFREG | 0o644, order),
        entry("lib", stat.S_IFDIR | 0o755),
        *(entry(f"lib/{name}", stat.S_IFREG | 0o644, data) for name, data in loaded),
        entry("TRAILER!!!", 0),
    ]
    return b"".join(entries)


def entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """One file of a cpio, in the form the kernel calls newc."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return _aligned(head) + _aligned(data)


def _aligned(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
