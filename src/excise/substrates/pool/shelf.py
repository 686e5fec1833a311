"""The idle sandboxes and templates of a pool, found by what they hold: no look-up goes through all of them.

A want looks for each of its own prefixes, first as a state, then as a family; entries of one state are alike. Choosing and
taking is one piece of synchronous code, so that no sandbox is claimed twice.
"""

from collections.abc import Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from excise.spec import Step
from excise.substrates.pool.closeness import Depth, depth, path, switches
from excise.substrates.pool.costs import Costs, kind_of
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.state import State

P = TypeVar("P")
T = TypeVar("T")

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
    template: bool


class _Row(Generic[T]):
    """Things by name, the last that came at the end. Each change and each look takes the same time, whatever was removed.

    A dict does not: it walks over the gaps that were left by what was removed at the end where it is read.
    """

    __slots__ = ("_at", "_names", "_things")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._things: list[T] = []
        self._at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def add(self, name: str, thing: T) -> None:
        self._at[name] = len(self._names)
        self._names.append(name)
        self._things.append(thing)

    def remove(self, name: str) -> None:
        """The last takes its place."""
        at = self._at.pop(name)
        moved, thing = self._names.pop(), self._things.pop()
        if moved != name:
            self._names[at], self._things[at], self._at[moved] = moved, thing, at

    def last(self, count: int = 1) -> list[T]:
        return self._things[-count:]


class Shelf(Generic[P]):
    def __init__(self, match: Match = "closest") -> None:
        self._match: Match = match
        self._entries: dict[str, Entry[P]] = {}
        self._states: dict[tuple[_Place, str], _Row[Entry[P]]] = {}
        self._families: dict[tuple[_Place, str], _Row[_Row[Entry[P]]]] = {}
        """The rows of its states, by their keys."""
        self._idle: dict[str, int] = {}
        self._bytes = 0
        self._templates = 0

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
        alike = self._states.get((place, key))
        if alike is None:
            alike = self._states[place, key] = _Row()
            self._families.setdefault((place, entry.state.family), _Row()).add(key, alike)
        alike.add(entry.id, entry)
        self._entries[entry.id] = entry
        self._idle[key] = self._idle.get(key, 0) + 1
        self._bytes += entry.bytes
        self._templates += entry.template

    def remove(self, id: str) -> Entry[P] | None:
        """Take one out by its name; None if it is not there (any more)."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        place, key = _place(entry), entry.state.key
        alike = self._states[place, key]
        alike.remove(id)
        if not alike:
            del self._states[place, key]
            family = self._families[place, entry.state.family]
            family.remove(key)
            if not family:
                del self._families[place, entry.state.family]
        self._idle[key] -= 1
        if not self._idle[key]:
            del self._idle[key]
        self._bytes -= entry.bytes
        self._templates -= entry.template
        return entry

    def take_same(self, want: State, fit: str, owner: Owner) -> Entry[P] | None:
        """An idle one that holds the very state, taken: nothing is nearer, so nothing is compared."""
        for each in _owners(owner):
            if alike := self._states.get((_Place(fit, each, False), want.keys[-1])):
                (entry,) = alike.last()
                self.remove(entry.id)
                return entry
        return None

    def take_closest(self, want: State, fit: str, owner: Owner, costs: Costs, fresh_s: float) -> Taken[P] | None:
        """The entry with the least expected seconds to `want`, taken; None if `fresh_s`, a create, is no worse."""
        places = self._places(fit, owner)
        best: Entry[P] | None = None
        best_s, rest_s = fresh_s, 0.0
        for done in range(len(want.steps), -1, -1):
            if done < len(want.steps):
                rest_s += costs.seconds(kind_of(want.steps[done]), want.digests[done])
            if rest_s >= best_s:
                break  # what is not so deep takes longer still
            for entry in self._holding(want, done, places):
                expected_s = rest_s + _extra_s(entry, want, costs)
                if expected_s < best_s:
                    best, best_s = entry, expected_s
            if self._match == "exact":
                break
        if best is None:
            return None
        if not best.template:
            self.remove(best.id)
        return Taken(best, path(best.state, want), best_s, depth(best.state, want))

    def _places(self, fit: str, owner: Owner) -> list[_Place]:
        """Where that lies which `owner` may have."""
        owners = _owners(owner)
        places = [_Place(fit, each, False) for each in owners]
        if self._templates:
            places.extend([_Place(fit, each, True) for each in owners])
        return places

    def _holding(self, want: State, done: int, places: list[_Place]) -> Iterator[Entry[P]]:
        """Of each place one entry that holds the first `done` steps of `want`, or siblings of them; the last that came.

        Its memory is warm, and those not needed grow old together and expire.
        """
        for place in places:
            if alike := self._states.get((place, want.keys[done])):
                yield from alike.last()
            elif self._match == "closest" and (family := self._families.get((place, want.families[done]))):
                yield from max(family.last(SIBLINGS_SEEN), key=len).last()


def _owners(owner: Owner) -> tuple[Owner | None, ...]:
    """Whose `owner` may have: what is nobody's, what is theirs, what saw the same secrets."""
    return (None, Owner(owner.name), owner) if owner.secrets else (None, owner)


def _extra_s(entry: Entry[P], want: State, costs: Costs) -> float:
    """Until it holds what `want` begins with."""
    kind, key = ("template", entry.state.key) if entry.template else ("adopt", want.image)
    return costs.seconds(kind, key) + costs.expected_s(switches(entry.state, want))


def _place(entry: Entry[P]) -> _Place:
    return _Place(entry.fit, entry.owner, entry.template)
