"""`excise logs`: what was run in a sandbox and what it printed, where its owner keeps a journal."""

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.action import Action, Batch, End, Exec, Shell
from excise.cli.sentences import plain
from excise.errors import SpecError
from excise.looking.journal import OUTPUT, VARIABLE
from excise.trajectory import Line

app = App(
    name="logs",
    help_epilogue="""\
A journal is kept where the owner was started with EXCISE_JOURNAL=DIRECTORY: a file for each sandbox, a trajectory with the \
end of each output, never the value of a secret. It outlives the sandbox; remove it when you have read it.

Examples:
  EXCISE_JOURNAL=journals python3 train.py &
  excise logs 3f2a9c04d1b7 -f
  excise logs journals/3f2a9c04d1b7.jsonl""",
)


@app.default
def logs(
    id: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="", show_default=False)] = False,
) -> int:
    """Show what was run in a sandbox and what it printed.

    Parameters
    ----------
    id
        The sandbox, as `excise ps` lists it; or a journal's file, or for one that has ended its id, with EXCISE_JOURNAL set.
    follow
        Go on with what is done next, until the sandbox is closed.
    """
    asyncio.run(_show(id, follow))
    return 0


async def _show(given: str, follow: bool) -> None:
    decoder = msgspec.json.Decoder(Line)
    waiting = b""
    async for data in _journal(given, follow):
        *whole, waiting = (waiting + data).split(b"\n")
        for text in whole:
            sys.stdout.writelines(lines(decoder.decode(text)))
        sys.stdout.flush()


async def _journal(given: str, follow: bool) -> AsyncIterator[bytes]:
    from excise.looking.find import opened  # noqa: PLC0415 - `excise logs --help` does not pay for it
    from excise.looking.visit import Visit  # noqa: PLC0415 - see above

    path = await asyncio.to_thread(_file, given)
    if path is not None and not follow:
        yield path.read_bytes()
        return
    async with opened(given) as handle:
        if not isinstance(handle, Visit):
            raise SpecError("its owner is gone and keeps no journal any more: name the file it left")
        async for data in handle.follow():
            yield data
            if not follow:
                return


def _file(given: str) -> Path | None:
    """The journal's file that is named, or that EXCISE_JOURNAL's directory has of that id."""
    if "/" in given or given.endswith(".jsonl"):
        return Path(given)
    named = os.environ.get(VARIABLE)
    matching = [path for path in Path(named).glob("*.jsonl") if _is_of(path.stem, given)] if named else []
    if len(matching) > 1:
        raise SpecError(f"{given!r} could be {', '.join(sorted(path.name for path in matching))}: say more of its id")
    return matching[0] if matching else None


def _is_of(stem: str, given: str) -> bool:
    return bool(given) and (stem.startswith(given) or stem.endswith(given))


def lines(line: Line) -> Iterator[str]:
    """One line of the journal, as it is read: what was done after a $, what it printed, and how it ended if not well."""
    if line.start is not None:
        yield f"# started from {plain(line.start.image)}\n"
    elif line.action is not None:
        yield f"$ {plain(_words(line.action))}\n"
    elif line.verb not in (None, OUTPUT):
        yield f"# {plain(line.verb or '')}\n"
    if line.printed:
        # A sandbox chose these words: nothing of them reaches the terminal as a command.
        text = "\n".join(plain(part, but="\t") for part in line.printed.split("\n"))
        yield text if text.endswith("\n") or line.verb == OUTPUT else f"{text}\n"
    if line.end is not End.EXITED:
        yield f"[{line.end.value.replace('_', ' ')}]\n"
    elif line.exit_code or line.errno:
        yield f"[exit code {line.exit_code}]\n" if line.exit_code else f"[{os.strerror(line.errno or 0)}]\n"


def _words(action: Action) -> str:
    match action:
        case Exec():
            return shlex.join(action.argv)
        case Shell():
            return action.script if action.session is None else f"[{action.session}] {action.script}"
        case Batch():
            return "; ".join(map(_words, action.actions))
        case _:
            return f"({type(action).__name__.lower()} {action.path})"
