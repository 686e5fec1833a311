"""The shelf: the nearest of all that may be had, once, however many there are; against a search through every entry."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from excise.spec import Spec
from excise.substrates.pool.closeness import plan
from excise.substrates.pool.costs import TRIES, Costs
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.shelf import Entry, Shelf, Taken
from excise.substrates.pool.state import State, state_of

ME, YOU = Owner("me"), Owner("you")


def state(commit: int = 1, lock: int | None = 1, *, done: int = 2, repo: str = "x", image: str = "i") -> State:
    spec = Spec(image=image, repo=f"https://host/{repo}@{commit}", deps="install", lock=None if lock is None else str(lock))
    return state_of(spec).upto(done)


STATES = st.builds(
    state,
    st.integers(1, 3),
    st.sampled_from([1, 2, None]),
    done=st.integers(0, 2),
    repo=st.sampled_from("xy"),
    image=st.sampled_from("ij"),
)
OWNERS = st.builds(Owner, st.sampled_from(["", "me", "you"]), st.sampled_from([b"", b"1", b"2"]))
FITS = st.sampled_from(["", "mounts"])


def may_have(entry: Entry[None], fit: str, owner: Owner) -> bool:
    if entry.fit != fit or entry.owner is None:
        return entry.fit == fit
    return entry.owner.name == owner.name and entry.owner.secrets in (b"", owner.secrets)


def nearest_s(entries: Sequence[Entry[None]], want: State, fit: str, owner: Owner, costs: Costs) -> float:
    """By looking at every entry."""
    best_s = math.inf
    for entry in entries:
        steps = plan(entry.state, want)
        if steps is not None and may_have(entry, fit, owner):
            start_s = costs.seconds("template", entry.state.key) if entry.template else costs.seconds("adopt", want.image)
            best_s = min(best_s, start_s + costs.expected_s(steps))
    return best_s


class Shelved(RuleBasedStateMachine):
    """Entries come, are taken and removed in any order, while costs change."""

    ids = Bundle[str]("ids")

    def __init__(self) -> None:
        super().__init__()
        self.shelf: Shelf[None] = Shelf()
        self.there: dict[str, Entry[None]] = {}
        self.costs = Costs()
        self.made = 0

    @rule(
        target=ids,
        state=STATES,
        fit=FITS,
        owner=st.one_of(st.none(), OWNERS),
        size=st.integers(0, 9),
        template=st.sampled_from([False, False, True]),
    )
    def put(self, state: State, fit: str, owner: Owner | None, size: int, template: bool) -> str:
        self.made += 1
        name = str(self.made)
        entry = Entry(id=name, state=state, payload=None, fit=fit, owner=owner, bytes=size, template=template)
        self.shelf.put(entry)
        self.there[name] = entry
        return name

    @rule(want=STATES, fit=FITS, owner=OWNERS, fresh_s=st.sampled_from([0.005, 1.0, 6.0, 40.0, math.inf]))
    def take(self, want: State, fit: str, owner: Owner, fresh_s: float) -> None:
        expected_s = nearest_s([*self.there.values()], want, fit, owner, self.costs)
        taken = self.shelf.take_closest(want, fit, owner, self.costs, fresh_s)
        if taken is None:
            assert expected_s >= fresh_s or expected_s == pytest.approx(fresh_s)
            return
        assert taken.expected_s == pytest.approx(expected_s)
        assert taken.expected_s < fresh_s
        assert taken.steps == plan(taken.entry.state, want)
        assert may_have(taken.entry, fit, owner)
        assert self.there[taken.entry.id] is taken.entry
        if not taken.entry.template:
            del self.there[taken.entry.id]

    @rule(want=STATES, fit=FITS, owner=OWNERS)
    def take_same(self, want: State, fit: str, owner: Owner) -> None:
        alike = [one for one in self.there.values() if one.state.key == want.key and not one.template]
        taken = self.shelf.take_same(want, fit, owner)
        if taken is None:
            assert not any(may_have(one, fit, owner) for one in alike)
            return
        assert taken in alike
        assert may_have(taken, fit, owner)
        del self.there[taken.id]

    @rule(name=consumes(ids))
    def remove(self, name: str) -> None:
        assert self.shelf.remove(name) is self.there.pop(name, None)
        assert self.shelf.remove(name) is None

    @rule(want=STATES, seconds=st.floats(0.001, 100.0))
    def measure(self, want: State, seconds: float) -> None:
        self.costs.note_steps(want.steps, seconds)

    @invariant()
    def counts(self) -> None:
        assert len(self.shelf) == len(self.there)
        assert {entry.id for entry in self.shelf} == set(self.there)
        assert self.shelf.bytes == sum(entry.bytes for entry in self.there.values())
        for key in {entry.state.key for entry in self.there.values()}:
            assert self.shelf.idle(key) == sum(entry.state.key == key for entry in self.there.values())

    def teardown(self) -> None:
        for name in [*self.there]:
            self.shelf.remove(name)
        empty: Shelf[None] = Shelf()
        assert vars(self.shelf) == vars(empty)  # an index that keeps what is gone grows for ever


TestShelved = Shelved.TestCase


def shelf_of(*entries: Entry[None], match: str = "closest") -> Shelf[None]:
    shelf: Shelf[None] = Shelf("exact" if match == "exact" else "closest")
    for entry in entries:
        shelf.put(entry)
    return shelf


def entry(name: str, held: State, owner: Owner | None = None, *, template: bool = False) -> Entry[None]:
    return Entry(id=name, state=held, payload=None, owner=owner, template=template)


def take(shelf: Shelf[None], want: State, owner: Owner = ME, fresh_s: float = math.inf) -> Taken[None] | None:
    return shelf.take_closest(want, "", owner, Costs(), fresh_s)


def test_the_nearest_is_taken_and_said_how_near_it_was() -> None:
    want = state(1)
    shelf = shelf_of(
        entry("image", state(done=0)),
        entry("other-commit", state(2, done=1)),
        entry("same-commit", state(1, done=1)),
        entry("other-commit-installed", state(2)),
        entry("ready", state(1)),
        entry("elsewhere", state(1, image="j")),
    )
    order = []
    while (taken := take(shelf, want)) is not None:
        order.append((taken.entry.id, taken.depth, len(taken.steps)))
    assert order == [
        ("ready", "deps", 0),
        ("other-commit-installed", "sibling", 1),
        ("same-commit", "repo", 1),
        ("other-commit", "sibling", 2),
        ("image", "image", 2),
    ]
    assert len(shelf) == 1


def test_nothing_is_taken_where_a_create_is_no_worse() -> None:
    shelf = shelf_of(entry("image", state(done=0)))
    near_s = take(shelf_of(entry("image", state(done=0))), state(1))
    assert near_s is not None
    assert take(shelf, state(1), fresh_s=near_s.expected_s) is None
    assert take(shelf, state(1), fresh_s=near_s.expected_s * 1.01) is not None


def test_a_switch_that_costs_more_than_a_clone_is_not_taken() -> None:
    want, costs = state(1, done=1), Costs()
    for _ in range(TRIES):
        costs.note_steps(plan(state(2, done=1), want) or (), 60.0)
    shelf = shelf_of(entry("sibling", state(2, done=1)), entry("image", state(done=0)))
    taken = shelf.take_closest(want, "", ME, costs, math.inf)
    assert taken is not None
    assert taken.entry.id == "image"


def test_exact_match_finds_the_same_state_alone() -> None:
    shelf = shelf_of(entry("image", state(done=0)), entry("sibling", state(2)), match="exact")
    assert take(shelf, state(1)) is None
    shelf.put(entry("same", state(1)))
    taken = take(shelf, state(1))
    assert taken is not None
    assert taken.entry.id == "same"


def test_what_is_somebodys_is_nobody_elses() -> None:
    shelf = shelf_of(entry("mine", state(1), ME), entry("secret", state(1), Owner("me", b"1")))
    assert take(shelf, state(1), YOU) is None
    assert take(shelf, state(1), Owner("you", b"1")) is None
    first, second = take(shelf, state(1), ME), take(shelf, state(1), ME)
    assert first is not None
    assert first.entry.id == "mine"
    assert second is None  # what saw secrets is not for a claim without them
    third = take(shelf, state(1), Owner("me", b"1"))
    assert third is not None
    assert third.entry.id == "secret"
    shelf.put(first.entry)
    assert take(shelf, state(1), Owner("me", b"2")) is not None  # what is mine and saw none is for any of my claims


def test_a_template_is_not_used_up_and_an_idle_one_goes_before_it() -> None:
    shelf = shelf_of(entry("idle", state(1)), entry("template", state(1), template=True))
    names = [taken.entry.id for _ in range(3) if (taken := take(shelf, state(1))) is not None]
    assert names == ["idle", "template", "template"]


def test_a_sibling_is_taken_from_the_commit_of_which_most_are_idle() -> None:
    shelf = shelf_of(entry("a", state(2)), entry("b", state(3)), entry("c", state(3)), entry("d", state(4)))
    taken = take(shelf, state(1))
    assert taken is not None
    assert taken.entry.state.key == state(3).key


def test_one_sandbox_is_idle_once() -> None:
    shelf = shelf_of(entry("a", state(1)))
    with pytest.raises(ValueError, match="already"):
        shelf.put(entry("a", state(2)))


@given(st.lists(st.integers(0, 30), unique=True), st.data())
def test_a_row_takes_no_longer_whatever_was_removed(names: list[int], data: st.DataObject) -> None:
    """By what it holds: a list without gaps, and where each is in it."""
    shelf: Shelf[None] = Shelf()
    for name in names:
        shelf.put(entry(str(name), state(1)))
    left = set(names)
    for name in data.draw(st.permutations(names)):
        shelf.remove(str(name))
        left.discard(name)
        assert {int(each.id) for each in shelf} == left
        taken = take(shelf, state(1))
        assert (taken is not None) == bool(left)
        if taken is not None:
            shelf.put(taken.entry)
