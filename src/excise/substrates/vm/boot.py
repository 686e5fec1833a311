"""What a machine boots: the initial root that all share, and behind it, in the same file, what is this machine's own."""

import asyncio
import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path

from excise.errors import SubstrateError
from excise.storage.store import Image
from excise.vmm.initrd import entry
from excise.vmm.kept import kept
from excise.vmm.kernel import Kernel, modules

HERE = Path(__file__).parent / "machine"
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "squashfs", "overlay", "ext4")
_APPLETS = ("sh", "mount", "mkdir", "mknod", "insmod", "ln", "cp", "rm", "chmod", "switch_root")
_TOP = ("bin", "dev", "lib", "proc", "root", "run", "sys")
_DIRECTORY, _FILE, _PROGRAM, _LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o600, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
_END = entry("TRAILER!!!", 0)


async def shared(kernel: Kernel, system: Image) -> Path:
    """The initial root of every machine: busybox, the modules and the program that finds the disks; made once."""
    choice = f"{kernel.release}\n{kernel.modules}\n{MODULES}\n{_APPLETS}\n{system.digest}\n".encode()
    digest = hashlib.sha256(choice + text("init")).hexdigest()

    async def fill(making: Path) -> None:
        await asyncio.to_thread(lambda: making.write_bytes(_packed(kernel, system)))

    return await kept(f"vm-initrd-{digest[:32]}", fill)


def _packed(kernel: Kernel, system: Image) -> bytes:
    loaded = modules(kernel, MODULES)
    busybox = system.root / "usr/bin/busybox"
    if not busybox.is_file():
        raise SubstrateError(f"image {system.name} has no busybox: run `excise image rm {system.name}` and build it again")
    entries = [
        *(entry(name, _DIRECTORY) for name in _TOP),
        entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
        entry("bin/busybox", _PROGRAM, busybox.read_bytes()),
        *(entry(f"bin/{name}", _LINK, b"busybox") for name in _APPLETS),
        entry("init", _PROGRAM, text("init")),
        entry("modules", _FILE, "".join(f"{name}\n" for name, _ in loaded).encode()),
        *(entry(f"lib/{name}", _FILE, data) for name, data in loaded),
        _END,
    ]
    return b"".join(entries)


def own(config: str, units: Mapping[str, bytes], files: Mapping[str, bytes]) -> bytes:
    """What only this machine has, as a second archive: the kernel unpacks one after the other."""
    entries = [
        *(entry(name, _DIRECTORY) for name in ("excise", "excise/own", "excise/units")),
        entry("excise/config", _FILE, config.encode()),
        *(entry(f"excise/units/{name}", _FILE, data) for name, data in units.items()),
        *(entry(f"excise/own/{name}", _FILE, data) for name, data in files.items()),
        _END,
    ]
    return b"".join(entries)


def text(name: str) -> bytes:
    """A file that machines are given as it is."""
    return (HERE / name).read_bytes()
