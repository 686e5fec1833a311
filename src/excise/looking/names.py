"""A sandbox's id as people read and type it."""

import re
from collections.abc import Sequence

from excise.errors import SpecError
from excise.looking.records import About

_SHORT = 12


def short(id: str) -> str:
    """The part of an id that tells it from others: a container's beginning, the end of a name that begins with its owner."""
    owned = re.fullmatch(r"[a-z+]+-\d+-\d+-([0-9a-f]{12})", id)
    if owned is not None:
        return owned[1]
    return id[:_SHORT] if re.fullmatch(r"[0-9a-f]{16,}", id) else id


def matching(given: str, found: Sequence[About]) -> list[About]:
    """Those that `given` names: by the id, or else by the beginning or the end of it."""
    exact = [one for one in found if given in (one.id, short(one.id))]
    return exact or [one for one in found if given and (one.id.startswith(given) or one.id.endswith(given))]


def chosen(given: str, found: Sequence[About]) -> About:
    """The one sandbox that `given` names."""
    named = matching(given, found)
    if not named:
        raise SpecError(f"no live sandbox of yours is called {given!r}: `excise ps` lists them")
    if len(named) > 1:
        raise SpecError(f"{given!r} could be {', '.join(short(one.id) for one in named)}: say more of its id")
    return named[0]
