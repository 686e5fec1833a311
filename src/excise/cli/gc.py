"""`excise gc`: remove what outlived its lease or its owner."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter

from excise import registry
from excise.api import connect
from excise.errors import ExciseError, Unsupported
from excise.substrate import Substrate

app = App(
    name="gc",
    help_epilogue="""\
Examples:
  excise gc
  excise gc docker --dry-run""",
)


@app.default
def gc(*addresses: str, dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> int:
    """Remove sandboxes that outlived their lease or their owner.

    Parameters
    ----------
    addresses
        The substrates to look at; every one that runs here if none is named.
    dry_run
        Only say what has outlived its lease.
    """
    asyncio.run(_named(addresses, dry_run) if addresses else _all(dry_run))
    return 0


async def _named(addresses: Sequence[str], dry_run: bool) -> None:
    for address in addresses:
        async with connect(address) as substrate:
            await substrate.probe()
            await _collect(substrate, dry_run)


async def _all(dry_run: bool) -> None:
    """What cannot run now may still have left something: it is no failure of gc, but it is said."""
    for name in registry.names():
        if name == "command":
            continue  # its recipes have names of their own, or are named by file
        try:
            await _named([name], dry_run)
        except ExciseError as error:
            sys.stderr.write(f"{name}: not looked at: {error}\n")


async def _collect(substrate: Substrate, dry_run: bool) -> None:
    if not dry_run:
        _say(substrate.address, "removed", await substrate.collect())
        return
    try:
        listed = await substrate.list({})
    except Unsupported:
        sys.stdout.write(f"{substrate.address}: keeps no list, so only gc without --dry-run finds what it left\n")
        return
    over = [one.id for one in listed if one.lease_left_s is not None and one.lease_left_s < 0]
    _say(substrate.address, "would remove", over)


def _say(address: str, verb: str, what: Sequence[str]) -> None:
    sys.stdout.write(f"{address}: {verb} {', '.join(what) if what else 'nothing'}\n")
