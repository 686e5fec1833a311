"""The idle sandboxes and templates of a pool, found by what they hold: no look-up goes through all of them.

A want looks for each of its own prefixes, first as a state, then as a family; entries of one state are alike. Choosing and
taking is one piece of synchronous code, so that no sandbox is claimed twice.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from excise.spec import Step
from excise.substrates.pool.closeness import Depth, depth, path
from excise.substrates.pool.costs import Costs
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.state import State

P = TypeVar("P")

Match = Literal["closest", "exact"]
SIBLINGS_SEEN = 8
"""How many states of a family are compared, to take from the one of which most are idle."""


class Entry(msgspec.Struct, Generic[P], eq=False, kw_only=True):
    """One idle sandbox, or a template that others are made of."""

    id: str
    state: State
    payload: P
    fit: str = ""
    owner: Owner | None = None
    """Whose it is alone; None: nobody's yet. With secrets: those that its steps saw, and that must be the same again."""
    bytes: int = 0
    template: bool = False
    """Not used up by being taken."""
    since_s: float = 0.0


class Taken(NamedTuple, Generic[P]):
    """What a claim got, and what is to be done with it."""

    entry: Entry[P]
    steps: tuple[Step, ...]
    expected_s: float
    depth: Depth


class _Place(NamedTuple):
    """Whom it may go to."""

    fit: str
    owner: Owner | None


class Shelf(Generic[P]):
    def __init__(self, match: Match = "closest") -> None:
        self._match: Match = match
        self._entries: dict[str, Entry[P]] = {}
        self._states: dict[tuple[_Place, str], dict[str, Entry[P]]] = {}
        self._families: dict[tuple[_Place, str], dict[str, None]] = {}
        """The keys of the states of a family, the last used at the end."""
        self._idle: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[P]]:
        return iter(tuple(self._entries.values()))

    @property
    def bytes(self) -> int:
        return self._bytes

    def idle(self, key: str) -> int:
        """How many of a state there are, whoever may have them."""
        return self._idle.get(key, 0)

    def put(self, entry: Entry[P]) -> None:
        """Shelve it; whoever gave it has it no more."""
        if entry.id in self._entries:
            raise ValueError(f"{entry.id} is on the shelf already: a sandbox is idle once")
        place, key = _place(entry), entry.state.key
        self._entries[entry.id] = entry
        self._states.setdefault((place, key), {})[entry.id] = entry
        self._families.setdefault((place, entry.state.family), {})[key] = None
        self._idle[key] = self._idle.get(key, 0) + 1
        self._bytes += entry.bytes

    def remove(self, id: str) -> Entry[P] | None:
        """Take one out by its name; None if it is not there (any more)."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        place, key, family = _place(entry), entry.state.key, (_place(entry), entry.state.family)
        alike = self._states[place, key]
        del alike[id]
        if not alike:
            del self._states[place, key]
            del self._families[family][key]
            if not self._families[family]:
                del self._families[family]
        self._idle[key] -= 1
        if not self._idle[key]:
            del self._idle[key]
        self._bytes -= entry.bytes
        return entry

    def take_closest(self, want: State, fit: str, owner: Owner, costs: Costs, fresh_s: float) -> Taken[P] | None:
        """The entry with the least expected seconds to `want`, taken; None if `fresh_s`, a create, is no worse."""
        places = [_Place(fit, None), _Place(fit, Owner(owner.name))]
        if owner.secrets:
            places.append(_Place(fit, owner))
        best: Entry[P] | None = None
        best_s = fresh_s
        for entry in self._candidates(want, places):
            expected_s = self._expected_s(entry, want, costs)
            if expected_s < best_s:
                best, best_s = entry, expected_s
        if best is None:
            return None
        if not best.template:
            self.remove(best.id)
        return Taken(best, path(best.state, want), best_s, depth(best.state, want))

    def _candidates(self, want: State, places: list[_Place]) -> Iterator[Entry[P]]:
        """One entry for each thing that a want may find: at most four a prefix and a place, the deepest first."""
        for done in range(len(want.steps), -1, -1):
            for place in places:
                alike = self._states.get((place, want.keys[done]))
                if alike:
                    yield from _newest(alike)
                if self._match == "closest":
                    yield from self._siblings(place, want.families[done], want.keys[done])
            if self._match == "exact":
                return

    def _siblings(self, place: _Place, family: str, key: str) -> Iterator[Entry[P]]:
        states = self._families.get((place, family))
        if not states or (len(states) == 1 and key in states):
            return
        some = islice((other for other in states if other != key), SIBLINGS_SEEN)
        yield from _newest(max((self._states[place, other] for other in some), key=len))

    def _expected_s(self, entry: Entry[P], want: State, costs: Costs) -> float:
        have = entry.state
        start_s = costs.seconds("template", have.key) if entry.template else costs.seconds("adopt", want.image)
        if have.key == want.keys[len(have.steps)]:
            return start_s + costs.rest_s(want, len(have.steps))
        return start_s + costs.expected_s(path(have, want))


def _place(entry: Entry[P]) -> _Place:
    return _Place(entry.fit, entry.owner)


def _newest(alike: dict[str, Entry[P]]) -> Iterator[Entry[P]]:
    """The last that came: its memory is warm, and those not needed grow old together and expire."""
    yield alike[next(reversed(alike))]
