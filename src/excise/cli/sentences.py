"""What a user of the command line reads when something went wrong: one sentence, and an exit code."""

import os
import sys
import traceback

from cyclopts import CycloptsError

from excise.errors import ExciseError, SpecError

FAILED = 1
MISUSED = 2
"""The request is wrong; trying again will not help."""


def say(text: str) -> None:
    """Write to the user without mixing it into the command's own output."""
    sys.stdout.flush()
    sys.stderr.write(f"excise: {text}\n")


def describe(error: BaseException) -> int:
    """Say what went wrong and return the exit code for it."""
    if os.environ.get("EXCISE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    say(sentence(error))
    return MISUSED if isinstance(error, SpecError | CycloptsError) else FAILED


def sentence(error: BaseException) -> str:
    """One sentence for any error; what nobody foresaw says how to see more of it."""
    match error:
        case CycloptsError():
            command = " ".join(("excise", *(error.command_chain or ())))
            return f"{str(error).rstrip('.')}; `{command} --help` shows what there is"
        case ExciseError():
            return str(error)
        case OSError(strerror=str(reason)):
            return reason if error.filename is None else f"{reason}: {error.filename}"
        case _:
            return f"unexpected {type(error).__name__}: {error}; EXCISE_DEBUG=1 shows where: please report it"


def plain(text: str, but: str = "") -> str:
    """`text` without what would command a terminal, for words that a sandbox or its owner chose; characters in `but` stay."""
    return "".join(one if one.isprintable() or one in but else "\N{REPLACEMENT CHARACTER}" for one in text)
