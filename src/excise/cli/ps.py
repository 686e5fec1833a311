"""`excise ps`: the live sandboxes on this machine, whoever of this user's programs owns them."""

import asyncio
import sys
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.cli.rows import duration, print_rows
from excise.cli.sentences import say

app = App(
    name="ps",
    help_epilogue="""\
Their owners are asked, so nothing is written when a sandbox is made. Root sees everybody's. MEMORY is what its processes \
hold; a "-" is what the substrate cannot say from outside.

Examples:
  excise ps
  excise ps --json | jq -r '.[].id'""",
)

_HEAD = ("ID", "SUBSTRATE", "IMAGE", "AGE", "LEASE", "OWNER", "PROCESSES", "MEMORY", "LABELS")


@app.default
def ps(*, json: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> int:
    """List the live sandboxes.

    Parameters
    ----------
    json
        Print them as JSON.
    """
    from excise.looking.find import everything  # noqa: PLC0415 - `excise ps --help` does not pay for it
    from excise.looking.names import short  # noqa: PLC0415
    from excise.looking.records import About  # noqa: PLC0415

    def row(about: About) -> tuple[str, ...]:
        return (
            short(about.id) + (" (kept)" if about.kept else ""),
            about.address,
            about.image or "-",
            duration(about.age_s),
            duration(about.lease_left_s),
            "-" if about.owner_pid is None else str(about.owner_pid),
            "-" if about.processes is None else str(about.processes),
            "-" if about.memory_bytes is None else f"{about.memory_bytes / (1 << 20):.1f}M",
            ",".join(f"{key}={value}" for key, value in about.labels.items()) or "-",
        )

    found = asyncio.run(everything())
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found.sandboxes), indent=2).decode() + "\n")
    elif found.sandboxes:
        print_rows([_HEAD, *map(row, found.sandboxes)])
    else:
        say("no sandbox is open here")
    for sentence in found.silent:
        say(sentence)
    return 0
