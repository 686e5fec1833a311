"""What a user asks for as an action, and what came of it in Python's own words: pure."""

import errno
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from excise.action import Action, Batch, Exec, List, MakeDir, Move, Observation, Read, Remove, Shell, Stat, Write
from excise.errors import SpecError
from excise.trace import Span


def as_action(
    asked: str | Sequence[str] | Action,
    session: str | None,
    timeout_s: float | None,
    common: dict[str, Any],
    *,
    default_s: float,
) -> Action:
    """Shell text, an argv list or an action record as an action; a command without a timeout gets `default_s`."""
    if not isinstance(asked, str | list | tuple):
        return _record(asked, alone=session is None and timeout_s is None and not common, default_s=default_s)
    if timeout_s is None:
        timeout_s = default_s
    try:
        if isinstance(asked, str):
            return Shell(asked, session=session, timeout_s=timeout_s, **common)
        if session is not None:
            raise SpecError("a session takes shell text, not an argv list")
        # Not every caller has a type checker, and a Path in an argv is easily written.
        if not all(isinstance(word, str) for word in asked):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError("an argv list holds texts alone: give str() of a path or a number")
        return Exec(tuple(asked), timeout_s=timeout_s, **common)
    except TypeError as error:
        raise SpecError(f"run has no such option: {error}") from None


def _record(action: Any, *, alone: bool, default_s: float) -> Action:
    if not alone:
        raise SpecError("an action record carries its own session and options: give them there, not beside it")
    if not isinstance(action, Action):
        raise SpecError(f"a command is shell text, an argv list or an action record, not {type(action).__name__}")
    if isinstance(action, Exec | Shell) and action.timeout_s is None:
        return msgspec.structs.replace(action, timeout_s=default_s)
    return action


def longest_s(action: Action, default_s: float) -> float:
    """How long the action may take by its own timeouts."""
    if isinstance(action, Batch):
        return sum(longest_s(one, default_s) for one in action.actions)
    timeout_s = action.timeout_s if isinstance(action, Exec | Shell) else None
    return default_s if timeout_s is None else timeout_s


def kind_of(action: Action) -> str:
    """What its span is called."""
    if isinstance(action, Shell) and action.session is not None:
        return "session"
    return type(action).__name__.lower()


def note(recorded: Span, seen: Observation) -> None:
    """Into the span: what the guest's clock says, and how it ended."""
    recorded.guest_ns = seen.guest_ns
    recorded.cpu_ns = seen.cpu_ns
    recorded.outcome = seen.end.value if seen.errno is None else errno.errorcode.get(seen.errno, "error")


def as_exception(action: Action, number: int) -> OSError:
    """The built-in exception of a file action's failure."""
    path = action.path if isinstance(action, Read | Write | List | Stat | Remove | Move | MakeDir) else None
    return OSError(number, os.strerror(number), path)
