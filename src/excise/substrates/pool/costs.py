"""What things cost here, in seconds: the median of the last few, by what it was, then by its kind, then a stated guess."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from excise.spec import Step
from excise.substrates.pool.closeness import is_switch
from excise.substrates.pool.state import State, digest

Kind = Literal["base", "image", "repo", "deps", "switch", "create", "fresh", "template", "adopt", "reset", "verify", "close"]

GUESSES_S: dict[Kind, float] = {
    "base": 10.0,
    "image": 10.0,
    "repo": 5.0,
    "deps": 30.0,
    "switch": 2.0,
    "create": 0.5,
    "fresh": 0.5,
    "template": 0.5,
    "adopt": 0.01,
    "reset": 0.2,
    "verify": 0.05,
    "close": 0.1,
}
"""Before anything was measured. What is deeper is worth more, and a switch costs less than a clone."""
LAST = 9
"""How many measurements a median is of: enough to forget one that was slow, few enough to follow a host that became so."""
MOST_KEYS = 4096
TRIES = 3
"""Switches are tried so often before they are judged: what is dear is not chosen, and one that was slow would be the last."""


class Costs:
    """Measurements of one pool. A note and a question take the same time however many there were."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._by_key: OrderedDict[tuple[Kind, str], _Last] = OrderedDict()
        self._by_kind: dict[Kind, _Last] = {}
        self._kept: set[str] = set()
        """States of which a source that keeps steps has all."""

    def note(self, kind: Kind, key: str, seconds: float) -> None:
        """One measurement of `key`: a step's digest, a state's key, an image's name."""
        named = (kind, key)
        last = self._by_key.get(named)
        if last is None:
            last = self._by_key[named] = _Last()
            if len(self._by_key) > self._most_keys:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(named)
        last.add(seconds)
        self._by_kind.setdefault(kind, _Last()).add(seconds)

    def seconds(self, kind: Kind, key: str) -> float:
        last = self._by_key.get((kind, key)) or self._by_kind.get(kind)
        if last is None:
            return self._guess_s(kind)
        if kind == "switch" and self._by_kind[kind].count < TRIES:
            return min(last.median_s, self._guess_s(kind))
        return last.median_s

    def _guess_s(self, kind: Kind) -> float:
        clones = self._by_kind.get("repo") if kind == "switch" else None
        # A guess beside measured clones would keep the first switch from ever being tried, and so from being measured.
        return GUESSES_S[kind] if clones is None else clones.median_s * GUESSES_S["switch"] / GUESSES_S["repo"]

    def measured(self, kind: Kind, key: str) -> bool:
        """Whether `key` itself was measured."""
        return (kind, key) in self._by_key

    def note_steps(self, steps: Sequence[Step], seconds: float) -> None:
        """Steps that took `seconds` together; what each took is told apart by what they were expected to take."""
        expected = [self.step_s(step) for step in steps]
        whole = sum(expected)
        for step, part in zip(steps, expected, strict=True):
            self.note(kind_of(step), digest(step), seconds * part / whole if whole > 0 else seconds / len(steps))

    def note_made(self, state: State, create_s: float, whole_s: float, *, kept: bool) -> None:
        """A create by the source and all steps. `kept`: what the steps led to is kept there, and not run again.

        The first one ran them, and says nothing of those to come; the others say nothing of what the steps take.
        """
        if kept and state.key not in self._kept:
            if len(self._kept) > self._most_keys:
                self._kept.clear()
            self._kept.update(state.keys)
            return
        self.note("create", state.image, whole_s if kept else create_s)
        self.note("fresh", state.key, whole_s)
        if state.steps and not kept:
            self.note_steps(state.steps, whole_s - create_s)

    def step_s(self, step: Step) -> float:
        return self.seconds(kind_of(step), digest(step))

    def expected_s(self, steps: Iterable[Step]) -> float:
        """Of a plan: what its steps take together."""
        return sum(self.step_s(step) for step in steps)

    def rest_s(self, want: State, done: int) -> float:
        """The same for the steps of `want` after the first `done`."""
        pairs = zip(want.steps[done:], want.digests[done:], strict=True)
        return sum(self.seconds(kind_of(step), made) for step, made in pairs)

    def fresh_s(self, want: State) -> float:
        """A create by the source and all steps, as it was seen of this state, or in sum."""
        if self.measured("fresh", want.key):
            return self.seconds("fresh", want.key)
        kept = (done for done in range(len(want.steps), 0, -1) if want.keys[done] in self._kept)
        return self.seconds("create", want.image) + self.rest_s(want, next(kept, 0))


class _Last:
    """The last few of a row, and their median."""

    __slots__ = ("_row", "median_s")

    def __init__(self) -> None:
        self._row: deque[float] = deque(maxlen=LAST)
        self.median_s = 0.0

    @property
    def count(self) -> int:
        return len(self._row)

    def add(self, seconds: float) -> None:
        self._row.append(seconds)
        self.median_s = median(self._row)


def kind_of(step: Step) -> Kind:
    """What a step is like, when it was not measured itself."""
    return "switch" if is_switch(step) else step.stage.value
