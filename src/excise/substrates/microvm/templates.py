"""Templates: for each kind of machine one that has booted and answered, saved once; every sandbox begins as its copy."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from excise.action import Exec, Shell
from excise.errors import CreateError
from excise.guest.handle import GuestHandle
from excise.handles import finish
from excise.spec import Spec
from excise.substrate import Capabilities
from excise.substrates.microvm import machines
from excise.substrates.microvm.machines import Running
from excise.substrates.microvm.plan import Plan
from excise.vmm.kept import kept, place, remove

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNUSED_S = 3 * 86400.0
BOOT_S = 120.0
"""Longer than anybody waits: whoever asks next finds it done."""


class Templates:
    """Those of one substrate. Several who want the same one wait for one boot."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[Path]] = {}
        self._booting: dict[str, Running] = {}

    async def get(self, plan: Plan, deadline_s: float) -> Path:
        """The saved machine of this kind. A CreateError, with the console's tail, if it is not there in time."""
        name = f"template-{plan.key()}"
        found = place(name)
        if found.exists():
            os.utime(found)  # it is used
            return found
        making = self._making.get(name)
        if making is None or making.done():
            making = self._making[name] = asyncio.ensure_future(kept(name, lambda path: self._make(name, plan, path)))
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(making)
        except TimeoutError:
            booting = self._booting.get(name)
            said = "" if booting is None else f": {booting.machine.why()}"
            if booting is not None:
                booting.machine.console.keep("not-booted")
            raise CreateError(f"the virtual machine did not boot in {deadline_s:g} s{said}") from None

    async def _make(self, name: str, plan: Plan, path: Path) -> None:
        running = await machines.boot(plan)
        self._booting[name] = running
        try:
            running.link.greet({"PATH": _PATH}, "/", None)
            await machines.greeted(running, BOOT_S)
            await _warm(running)
            await machines.save(running, path)
        finally:
            del self._booting[name]
            await finish(running.close())

    async def close(self) -> None:
        for making in self._making.values():
            making.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        self._making.clear()


def collect() -> tuple[str, ...]:
    """Remove those that nobody has begun with for days. Machines that did live on: they hold the file."""
    gone: list[str] = []
    for path in place().glob("template-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_S:
                remove(path)
                gone.append(path.name)
    return tuple(gone)


async def _warm(running: Running) -> None:
    """Run what a sandbox runs first, so that the pages it needs are in the memory that all copies share."""

    async def nothing() -> None:
        """Whoever made it ends it."""

    capabilities = Capabilities(sessions=True, stream=True)
    handle = GuestHandle(
        running.link,
        id="template",
        address="microvm",
        capabilities=capabilities,
        spec=Spec(),
        image_env={"PATH": _PATH},
        cwd="/",
        user=None,
        dispose=nothing,
    )
    # An image need not have any of these.
    await handle.run(Exec(("true",)))
    await handle.run(Shell(":"))
    await handle.run(Shell(":", session="warm"))
