"""What a server did so far, and what its last actions took: for the page, the metrics and the status."""

from collections import Counter, deque

import msgspec

RECENT = 2048
_OF_ONE = 64


class Acted(msgspec.Struct, frozen=True):
    """One verb of a sandbox, as a bar of its waterfall: times in nanoseconds from the sandbox's first."""

    verb: str
    kind: str
    start_ns: int
    duration_ns: int
    outcome: str


class Life:
    """A sandbox's verbs, in order; the first and the last of them where there are too many."""

    def __init__(self, id: str, key: str, begun_ns: int) -> None:
        self.id = id
        self.key = key
        self.begun_ns = begun_ns
        self.acts: deque[Acted] = deque(maxlen=_OF_ONE)

    def note(self, verb: str, kind: str, start_ns: int, end_ns: int, outcome: str) -> None:
        self.acts.append(Acted(verb, kind, start_ns - self.begun_ns, end_ns - start_ns, outcome))


class Figures:
    """Counted as it happens."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By verb and outcome."""
        self.create_s: deque[float] = deque(maxlen=RECENT)
        self.action_s: deque[float] = deque(maxlen=RECENT)
        self.expired = 0
        self.readopted = 0
        self.cleaned = 0
        self.refused: Counter[str] = Counter()
        """Connections and requests, by why."""
        self.ended: deque[Life] = deque(maxlen=16)
        """The last sandboxes that were closed: their waterfalls can still be looked at."""
