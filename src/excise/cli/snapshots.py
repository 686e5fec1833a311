"""`excise snapshots`: states that can be started from, and an end to those nobody needs."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from cyclopts import App, Parameter

from excise import registry
from excise.api import connect
from excise.cli.rows import duration, print_rows
from excise.cli.sentences import say
from excise.errors import ExciseError, SpecError, Unsupported
from excise.substrate import Snapshot, Substrate

app = App(
    name="snapshots",
    help_epilogue="""\
Listed are those that `snapshot(keep_s=...)` kept and whose lease runs, and the images that are snapshots of containers. A \
snapshot that was not kept is only in the process that took it.

Examples:
  excise snapshots
  excise snapshots namespace
  excise snapshots --rm 0b7e54e1d2c14b0c9f5d0a6c1e3f2a77""",
)

_HEAD = ("ID", "SUBSTRATE", "IMAGE", "SIZE", "LEASE", "PARENT")


@app.default
def snapshots(
    address: str | None = None, /, *, rm: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = ()
) -> int:
    """List snapshots, or delete some.

    Parameters
    ----------
    address
        The substrate to look at; every one that has snapshots if none is named.
    rm
        Delete the snapshot of this ID instead; sandboxes made of it live on.
    """
    if rm:
        asyncio.run(_removed(address, set(rm)))
        return 0
    found = asyncio.run(_listed(address))
    if found:
        print_rows([_HEAD, *map(_row, found)])
    else:
        say("no snapshot is kept here")
    return 0


def _row(one: Snapshot) -> tuple[str, ...]:
    size = f"{one.size_bytes / (1 << 20):.1f}M"
    return one.id, one.address, one.spec.image, size, duration(one.lease_s), one.parent or "-"


async def _listed(address: str | None) -> list[Snapshot]:
    return [one async for _, some in _found(address) for one in some]


async def _removed(address: str | None, wanted: set[str]) -> None:
    async for substrate, some in _found(address):
        for one in some:
            if one.id in wanted:
                await substrate.discard(one)
                wanted.discard(one.id)
    if wanted:
        raise SpecError(f"there is no snapshot {', '.join(sorted(wanted))}: `excise snapshots` lists those there are")


async def _found(address: str | None) -> AsyncGenerator[tuple[Substrate, tuple[Snapshot, ...]]]:
    """Each substrate with its snapshots. Of all of them, one that cannot be asked is no failure, but it is said."""
    if address is not None:
        async with connect(address) as substrate:
            yield substrate, await substrate.snapshots()
        return
    for name in registry.names():
        if name == "command":
            continue  # its recipes have names of their own, and no snapshots
        try:
            async with connect(name) as substrate:
                yield substrate, await substrate.snapshots()
        except Unsupported:
            continue
        except ExciseError as error:
            say(f"{name}: not looked at: {error}")
