"""`excise ps`: the live sandboxes on this machine, whoever of this user's programs owns them."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.cli.sentences import plain, say

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
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


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
            _duration(about.age_s),
            _duration(about.lease_left_s),
            "-" if about.owner_pid is None else str(about.owner_pid),
            "-" if about.processes is None else str(about.processes),
            "-" if about.memory_bytes is None else f"{about.memory_bytes / (1 << 20):.1f}M",
            ",".join(f"{key}={value}" for key, value in about.labels.items()) or "-",
        )

    found = asyncio.run(everything())
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found.sandboxes), indent=2).decode() + "\n")
    elif found.sandboxes:
        _print([_HEAD, *map(row, found.sandboxes)])
    else:
        say("no sandbox is open here")
    for sentence in found.silent:
        say(sentence)
    return 0


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    size, unit = next((pair for pair in _UNITS if abs(seconds) >= pair[0]), _UNITS[-1])
    return f"{seconds / size:.0f}{unit}"


def _print(rows: Sequence[Sequence[str]]) -> None:
    # Labels and names are whatever their owner says: nothing of it reaches the terminal as a command.
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
