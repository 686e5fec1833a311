"""Whether the processor can help: KVM only where a kernel really boots under it, else QEMU's own emulation (TCG).

That /dev/kvm exists says little: it may belong to a host that is a virtual machine itself, under which guests hang.
"""

import asyncio
import os
import platform
from pathlib import Path
from typing import Literal

import msgspec

from excise.handles import finish
from excise.vmm.initrd import initrd
from excise.vmm.kept import kept
from excise.vmm.kernel import Kernel
from excise.vmm.qemu import Machine, version

_KVM = Path("/dev/kvm")
PROBE_S = 6.0
"""A kernel boots in a tenth of this where KVM works."""


class Accel(msgspec.Struct, frozen=True):
    """What runs a machine's code."""

    name: Literal["kvm", "tcg"]
    why: str = ""
    """Why it is not KVM."""

    def words(self) -> str:
        """As Capabilities.versions shows it."""
        return f"{self.name} ({self.why})" if self.why else self.name

    def arguments(self) -> tuple[str, ...]:
        """QEMU's. The processor is the host's own, or all that QEMU can emulate."""
        # Copying a byte at a time, which these two promise to do fast, is the slowest thing an emulated processor can do.
        return ("-accel", self.name, "-cpu", "host" if self.name == "kvm" else "max,erms=off,fsrm=off")


def processors(accel: str, count: int) -> tuple[str, str]:
    """QEMU's argument for how many a machine has.

    Where it emulates one that no other can ever join, QEMU leaves the memory barriers out of what it translates. But its own
    threads are the machine's devices, and share memory with it: now and then one misses what the other wrote, raises no
    interrupt, and both wait. So there is room for a second one, which never comes.
    """
    return ("-smp", f"{count},maxcpus={max(2, count)}" if accel == "tcg" else str(count))


async def accel(kernel: Kernel, device: Path = _KVM, deadline_s: float = PROBE_S) -> Accel:
    """What works here. Found by booting once, and kept for this kernel of the host and this QEMU."""
    if not os.access(device, os.F_OK):
        return Accel("tcg", f"there is no {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        return Accel("tcg", f"{device} may not be opened by this user")
    key = f"accel-{platform.release()}-{await version()}".replace("/", "_")

    async def fill(making: Path) -> None:
        _write(making, await probe(kernel, deadline_s))

    # Without the path: what is said of a substrate is kept in results, which are given away.
    found = _read(await kept(key, fill))
    return found if found.name == "kvm" else Accel("tcg", f"{found.why}; remove vmm/{key} of the cache to try again")


def _write(path: Path, found: Accel) -> None:
    path.write_bytes(msgspec.json.encode(found))


def _read(path: Path) -> Accel:
    return msgspec.json.decode(path.read_bytes(), type=Accel)


async def probe(kernel: Kernel, deadline_s: float) -> Accel:
    """Boot a kernel under KVM, to the first process of its own."""
    machine = await Machine.start(
        (
            *("-M", "microvm", "-accel", "kvm", "-cpu", "host", "-m", "256M"),
            *("-kernel", str(kernel.image), "-initrd", str(await initrd(kernel))),
            *("-append", "console=ttyS0 quiet panic=-1 excise.probe=on", "-serial", "chardev:console"),
        ),
        link=False,
    )
    try:
        said = asyncio.ensure_future(machine.console.says(b"excise-boot: probe"))
        await asyncio.wait({said, machine.ended}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        machine.console.tail()
        alive = said.done()
        said.cancel()
        if alive:
            return Accel("kvm")
        if machine.ended.done():
            words = machine.console.tail().splitlines()
            return Accel("tcg", f"/dev/kvm exists, but QEMU ends under it: {words[-1] if words else 'without a word'}")
        return Accel("tcg", f"/dev/kvm exists, but no kernel boots under it within {deadline_s:g} s")
    finally:
        await finish(machine.close())
