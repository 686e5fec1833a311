"""`excise rm`: end a sandbox that another process owns, or that was kept."""

import asyncio

from cyclopts import App

from excise.cli.sentences import FAILED, describe
from excise.errors import ExciseError, SpecError

app = App(
    name="rm",
    help_epilogue="""\
Its owner is told as of any loss: what it does there next is SandboxLost, which is never scored.

Examples:
  excise rm 3f2a9c04d1b7
  excise ps --json | jq -r '.[] | select(.kept) | .id' | xargs excise rm""",
)


@app.default
def rm(*ids: str) -> int:
    """End live sandboxes; nothing of them is left.

    Parameters
    ----------
    ids
        The sandboxes, as `excise ps` lists them.
    """
    if not ids:
        raise SpecError("name a sandbox: `excise ps` lists them")
    codes = [asyncio.run(_removed(given)) for given in ids]
    return max(codes)


async def _removed(given: str) -> int:
    from excise.looking.find import opened  # noqa: PLC0415 - `excise rm --help` does not pay for it

    try:
        async with opened(given) as handle:
            await handle.close()
    except ExciseError as error:
        return max(FAILED, describe(error))
    return 0
