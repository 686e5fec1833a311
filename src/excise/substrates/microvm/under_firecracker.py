"""`microvm?vmm=firecracker`: the same machines under another monitor. **Untested**, as `excise.vmm.firecracker` says."""

import os
from pathlib import Path

from excise.errors import SubstrateError
from excise.guest.link import Link
from excise.handles import finish
from excise.substrates.microvm import machines
from excise.substrates.microvm.machines import Running
from excise.substrates.microvm.plan import Host, Plan
from excise.vmm import firecracker
from excise.vmm.firecracker import PORT, Boot, FirecrackerMachine
from excise.vmm.kept import kept

_MEBIBYTE = 1 << 20


def require(host: Host, why: str) -> None:
    """Refuse where it cannot run."""
    firecracker.program()
    if host.accel != "kvm":
        raise SubstrateError(f"Firecracker needs KVM, and there is none here ({why}): leave vmm=firecracker out")


async def begun(plan: Plan, deadline_s: float, *, cold: bool) -> Running:
    """A machine whose guest was called, and greeted if it has just booted."""
    machine = await FirecrackerMachine.begin()
    try:
        if cold:
            await _boot(machine, plan)
        else:
            await machine.load(await kept(f"firecracker-{plan.key()}", lambda making: _save(plan, making)))
        carrier = await machine.until(machine.called(), "the guest does not take a call")
        running = Running(plan, machine, carrier, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), Link(carrier))
        machine.on_end = running.link.fail
        running.link.greet({}, "/", None)
        await machines.greeted(running, deadline_s)
    except BaseException:
        await finish(machine.close())
        raise
    return running


async def _boot(machine: FirecrackerMachine, plan: Plan) -> None:
    host = plan.host
    memory_mib = plan.memory_bytes // _MEBIBYTE
    await machine.boot(Boot(host.kernel, host.initrd, plan.called(PORT), plan.disk, memory_mib, plan.cpus))


async def _save(plan: Plan, making: Path) -> None:
    """Booted to where it waits for a call, which no copy has had then."""
    machine = await FirecrackerMachine.begin()
    try:
        await _boot(machine, plan)
        await machine.until(machine.console.says(b"excise-boot: listens"), "the virtual machine did not boot")
        machines.make(making)
        await machine.save(making)
    finally:
        await finish(machine.close())
