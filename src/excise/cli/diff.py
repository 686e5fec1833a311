"""`excise diff`: what a live sandbox has changed."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.cli.sentences import plain
from excise.substrate import Change

_LETTERS = {"added": "A", "modified": "M", "deleted": "D"}

app = App(
    name="diff",
    help_epilogue="""\
Compared with what it was when it was ready, or last reset. A is added, M modified, D deleted.

Examples:
  excise diff 3f2a9c04d1b7
  excise diff 3f2a9c04d1b7 --under /srv --patch | git apply --stat""",
)


@app.default
def diff(
    id: str,
    /,
    *,
    under: str = "/",
    patch: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show what a live sandbox has changed.

    Parameters
    ----------
    id
        The sandbox, as `excise ps` lists it.
    under
        Only what is in this directory of it.
    patch
        Print a patch that `git apply` takes, its names relative to --under.
    json
        Print the changes as JSON.
    """
    found = asyncio.run(_diff(id, under, patch))
    if isinstance(found, str):
        sys.stdout.buffer.write(found.encode("utf-8", "surrogateescape"))
    elif json:
        shown = [{"path": one.path, "kind": one.kind} for one in found]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{_LETTERS[one.kind]} {plain(one.path)}\n" for one in found)
    return 0


async def _diff(given: str, under: str, patch: bool) -> Sequence[Change] | str:
    from excise.looking.find import opened  # noqa: PLC0415 - `excise diff --help` does not pay for it
    from excise.patch import below, patch_of  # noqa: PLC0415

    async with opened(given) as handle:
        changes = below(under, await handle.diff(None, contents=patch))
        return await patch_of(handle, changes, under) if patch else changes
