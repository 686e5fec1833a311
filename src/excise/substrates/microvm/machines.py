"""Machines: booted, saved, and copied from what was saved.

A saved machine is a directory: `memory`, the file that copies map privately, so that all of them share its pages until
they write; `device`, what QEMU knows of the machine besides; and `place`, where the link to its guest stood.
"""

import asyncio
import os
import secrets
import time
from pathlib import Path

import msgspec

from excise.errors import CreateError, SubstrateError
from excise.guest import wire
from excise.guest.carrier import SocketCarrier
from excise.guest.link import Link, Place
from excise.handles import finish
from excise.storage.background import in_thread, to_end
from excise.substrates.microvm.plan import Plan
from excise.vmm import memory
from excise.vmm.kept import kept, sentence
from excise.vmm.qemu import Machine

# Saved without what QEMU calls its configuration, which only whole migrations have.
_INCOMING = ("-incoming", "defer", "-global", "migration.send-configuration=off")
_LATE_S = 0.1
_TRIES = 3
MEMORY, DEVICE, PLACE = "memory", "device", "place"


class Running(msgspec.Struct):
    """A machine and the link to its guest."""

    plan: Plan
    machine: Machine
    carrier: SocketCarrier
    base: int
    """A descriptor of the file that its memory began as."""
    link: Link

    async def close(self) -> None:
        """Hang up, and end it. Twice is fine."""
        self.link.close()
        try:
            await self.machine.close()
        finally:
            if self.base >= 0:
                os.close(self.base)
                self.base = -1


async def boot(plan: Plan) -> Running:
    """A machine that begins with nothing; its guest has not been greeted."""

    async def blank(making: Path) -> None:
        with making.open("wb") as file:
            file.truncate(plan.memory_bytes)

    base = await kept(f"blank-{plan.memory_bytes}", blank)
    return await _started(plan, base, plan.boot(), Place())


async def _started(plan: Plan, base: Path, more: tuple[str, ...], place: Place) -> Running:
    try:
        descriptor = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise sentence(error) from None
    try:
        machine = await Machine.start((*plan.devices(), *plan.memory(str(base)), *more))
    except BaseException:
        os.close(descriptor)
        raise
    carrier = machine.carrier()
    running = Running(plan, machine, carrier, descriptor, Link(carrier, place=place))
    machine.on_end = running.link.fail
    return running


async def wait(plan: Plan, saved: Path) -> Running:
    """A machine that waits to become a copy of the one that was saved: all that QEMU does before it has its state."""
    try:
        place = msgspec.json.decode((saved / PLACE).read_bytes(), type=Place)
    except FileNotFoundError:
        raise SubstrateError("what the machine was saved as is gone: make another one") from None
    return await _started(plan, saved / MEMORY, _INCOMING, place)


async def become(running: Running, saved: Path) -> None:
    """Let a machine that waits go on where the one that was saved stood, as another machine than that."""
    machine = running.machine
    with (saved / DEVICE).open("rb") as device:
        await machine.until(machine.qmp.hand_over("device", device.fileno()), "the saved machine cannot be given to QEMU")
    resumed = machine.qmp.event("RESUME")
    loading = machine.qmp.send("migrate-incoming", {"uri": "fd:device"})
    # Sent before it runs: what renews it is the first that its guest hears.
    renewed = asyncio.ensure_future(renew(running.link))
    try:
        await machine.until(loading, "the saved machine cannot be loaded")
        await machine.until(resumed, "the saved machine does not go on")
        await machine.until(renewed, "the copy of a machine does not answer")
    finally:
        if not renewed.done():
            renewed.cancel()


async def renew(link: Link) -> None:
    """Its random numbers, clock and names are nobody else's from now on."""
    sent_s = time.monotonic()
    await link.renew(time.time_ns(), secrets.token_bytes(wire.ID_BYTES), secrets.token_bytes(wire.SEED_BYTES))
    if time.monotonic() - sent_s > _LATE_S:
        await set_clock(link)


async def set_clock(link: Link) -> None:
    """A machine that stood still goes on where its clock stood."""
    for _ in range(_TRIES):
        sent_s = time.monotonic()
        await link.renew(time.time_ns(), bytes(wire.ID_BYTES), secrets.token_bytes(wire.SEED_BYTES))
        if time.monotonic() - sent_s < _LATE_S:
            return


async def copy(plan: Plan, saved: Path) -> Running:
    """A copy of the machine that was saved there; it runs."""
    running = await wait(plan, saved)
    try:
        await become(running, saved)
    except BaseException:
        await finish(running.close())
        raise
    return running


async def save(running: Running, directory: Path) -> int:
    """Save the machine as it is to a directory that is made; it stands still meanwhile. How many bytes that took."""
    # To its end: a machine that was stopped must go on.
    return await to_end(_save(running, directory))


async def _save(running: Running, directory: Path) -> int:
    machine, link = running.machine, running.link
    await link.still()
    try:
        await machine.pause()
        running.carrier.read_now()
        link.check()
        place = link.place()
        try:
            make(directory)
            await machine.qmp.execute("xen-save-devices-state", {"filename": str(directory / DEVICE), "live": False})
            await in_thread(lambda _: memory.save(machine.pid, running.base, directory / MEMORY))
            (directory / PLACE).write_bytes(msgspec.json.encode(place))
        except OSError as error:
            raise sentence(error) from None
        finally:
            if not machine.ended.done():
                await machine.resume()
    finally:
        link.go_on()
    await set_clock(link)
    return sum((directory / name).stat().st_blocks * 512 for name in (MEMORY, DEVICE))


def make(directory: Path) -> None:
    """Where a machine is saved to: nobody else may read it."""
    directory.mkdir(mode=0o700)


async def greeted(running: Running, deadline_s: float) -> None:
    """Wait until the guest of a machine that boots has answered its greeting; a CreateError with the console's tail else."""
    try:
        async with asyncio.timeout(deadline_s):
            await running.machine.until(running.link.greeted(), "the virtual machine did not boot")
            await running.machine.until(renew(running.link), "the virtual machine's guest does not answer")
    except TimeoutError:
        running.machine.console.keep(f"{running.machine.pid}-not-booted")
        raise CreateError(f"the virtual machine did not boot in {deadline_s:g} s: {running.machine.why()}") from None
