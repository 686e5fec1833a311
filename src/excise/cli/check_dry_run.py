"""What `excise check --dry-run` prints: a recipe's commands, and what their programs make of them."""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from excise.cli.sentences import FAILED
from excise.errors import SpecError
from excise.registry import make

if TYPE_CHECKING:
    from excise.substrates.command.dry_run import DryRun

_MARKS = {True: "read", False: "WRONG", None: "-"}


def show(addresses: Sequence[str], image: str, *, json: bool) -> int:
    """Each recipe's; exit 1 where a program could not read a command of it."""
    found = [asyncio.run(_dry_run(address, image)) for address in addresses]
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        for one in found:
            _print(one)
    return FAILED if any(one.wrong for one in found) else 0


async def _dry_run(address: str, image: str) -> "DryRun":
    substrate = make(address)
    try:
        dry_run = getattr(substrate, "dry_run", None)
        if dry_run is None:
            raise SpecError(f"{address} is no recipe, and has no dry run: `excise check {address}` tries it for real")
        return await dry_run(image)
    finally:
        await substrate.close()


def _print(found: "DryRun") -> None:
    lines = [f"{found.name}: nothing was made."]
    for one in found.commands:
        lines.append(f"  {_MARKS[one.read]:5}  {one.part:9}  {shlex.join(one.argv)}")
        if one.read is False:
            lines.append(f"         {'':9}  {one.by}")
    by = sorted({one.by for one in found.commands if one.read})
    lines.append(
        f"read: the program took the command line without doing it ({', '.join(by)}). -: rendered only."
        if by
        else "-: rendered only."
    )
    if found.missing:
        lines.append(f"Not installed here: {', '.join(found.missing)}.")
    if found.untried:
        lines.append(f"Not run: {found.untried}")
    sys.stdout.write("\n".join(lines) + "\n")
