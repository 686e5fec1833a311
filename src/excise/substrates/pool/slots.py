"""What claims want, and every state on the way there as the pool keeps it: what is idle of it, asked of it, wrong with it."""

import asyncio
import math
from typing import NamedTuple

import msgspec

from excise.adoption import ABILITY
from excise.spec import Spec
from excise.substrate import Capabilities, Handle, Snapshot, require
from excise.substrates.pool.closeness import Depth, depth
from excise.substrates.pool.owners import Owner, Owners, shows_credentials
from excise.substrates.pool.settings import FLOOR_BYTES
from excise.substrates.pool.shelf import Entry
from excise.substrates.pool.state import State, ahead, fit_of, state_of

MEMORY_S = 60.0
"""How fast an arrival is forgotten: the rate is a mean over about so long."""
MOST_WANTS = 8192


class Held(msgspec.Struct, eq=False, kw_only=True):
    """A sandbox, or a template's snapshot, and what the pool knows of it."""

    size_bytes: int
    """What its place was taken for."""
    handle: Handle | None = None
    snapshot: Snapshot | None = None
    made_s: float = 0.0
    """What making it took."""
    ahead: bool = False
    """Made by the pool, and not yet claimed by anybody."""
    leaving: bool = False
    """It is being closed."""
    slot: "Slot | None" = None
    """Where it is counted while it is idle."""
    renewing: "asyncio.Task[None] | None" = None
    """Its lease is being moved: who claims it meanwhile waits for that, so that its own lease is the last."""


class Want(NamedTuple):
    """A spec as claims see it, worked out once."""

    spec: Spec
    state: State
    fit: str
    secrets: bytes
    base: Spec
    """Without steps and labels: what a sandbox that has the whole state takes on."""
    shared: bool
    """Identical ones are made once, and the others of it."""
    depth: Depth
    """Of a hit on the very state."""
    public: int
    """After so many steps it is anybody's: the next one is shown a secret, or an address with a password in it."""


class Wants:
    """By the spec's identity: a trainer asks with the same object many times, and hashing it costs as much as a claim."""

    def __init__(self, owners: Owners, capabilities: Capabilities, address: str) -> None:
        self._owners = owners
        self._capabilities = capabilities
        self._address = address
        self._known: dict[int, Want] = {}

    def of(self, spec: Spec) -> Want:
        """SpecError if the source cannot honour it."""
        known = self._known.get(id(spec))  # which is its own as long as we hold it
        return known if known is not None else self._add(spec)

    def _add(self, spec: Spec) -> Want:
        capabilities = self._capabilities
        require(spec, capabilities, self._address)
        state, secrets = state_of(spec), self._owners.digest(spec.secrets)
        shared = (
            capabilities.snapshot is not None
            and not capabilities.keeps_steps
            and bool(state.steps)
            and all(step.share for step in state.steps)
        )
        fit = fit_of(spec, capabilities.adopts, secrets)
        want = Want(spec, state, fit, secrets, spec.with_steps(()), shared, depth(state, state), _public(state, secrets))
        if len(self._known) >= MOST_WANTS:
            self._known.clear()
        self._known[id(spec)] = want
        return want


class Slot:
    """One state, for whom it may be."""

    def __init__(self, name: str, want: Want, done: int, owner: Owner | None) -> None:
        self.name = name
        self.want = want
        """The last that asked: what is made ahead has its terms, so that the next like it finds nothing to change."""
        self.done = done
        self.state = want.state.upto(done)
        self.owner = owner
        self.idle: dict[str, Entry[Held]] = {}
        self.template: Entry[Held] | None = None
        self.filling = 0
        self.unplaced = False
        """What is to be made for them has no place yet: then one of this very state that came meanwhile makes room for it."""
        self.promised = 0
        """Claims that wait until one was made: it makes no room for others before they have looked."""
        self.size_bytes = FLOOR_BYTES
        self.asked_s = -math.inf
        self.wanted_s: float | None = None
        """Since when there are fewer than there should be."""
        self.failures = 0
        self.reason = ""
        self.retry_s = -math.inf
        self.reusable = True
        self.templates = True
        """Whether a snapshot of it can be had: one that failed is not tried with every sandbox."""
        self._rate_per_s = 0.0
        self._rate_at_s = 0.0

    @property
    def spoken_for(self) -> int:
        """How many of the idle make no room for others."""
        return 0 if self.unplaced else self.promised

    @property
    def title(self) -> str:
        """For people: the image, the steps, and enough of the key to tell it from others."""
        return " + ".join((self.state.image, *(step.name for step in self.state.steps))) + f" ({self.state.key[:8]})"

    def asked(self, now_s: float) -> None:
        """Somebody came for it."""
        self._rate_per_s = self.rate_per_s(now_s) + 1 / MEMORY_S
        self._rate_at_s = self.asked_s = now_s

    def rate_per_s(self, now_s: float) -> float:
        return self._rate_per_s * math.exp((self._rate_at_s - now_s) / MEMORY_S)

    def is_forgotten(self, now_s: float, idle_s: float) -> bool:
        """Nobody asks for it, and nothing of it is held."""
        held = self.idle or self.filling or self.promised or self.template is not None
        return not held and now_s - self.asked_s > max(idle_s, 10 * MEMORY_S)

    def recipe(self, capabilities: Capabilities) -> Spec:
        """The spec it is made of before anybody claims it."""
        made = ahead(self.want.spec, self.done, capabilities.adopts)
        # Steps that were given a secret are given it here, too: what they fetch with it is the owner's, as the slot is.
        secrets = self.want.spec.secrets if self.owner is not None else made.secrets
        needs = made.needs | {ABILITY} if capabilities.adopts else made.needs
        return msgspec.structs.replace(made, secrets=secrets, needs=needs)


def is_kept(state: State, capabilities: Capabilities) -> bool:
    """Whether the source itself keeps what the steps lead to, and runs them once."""
    return capabilities.keeps_steps and bool(state.steps) and all(step.share for step in state.steps)


def owner_of(want: Want, done: int, owner: str) -> Owner | None:
    """Whose a state is by being made: its owner's once a step was shown what is not for all."""
    return Owner(owner, want.secrets) if done > want.public else None


def _public(state: State, secrets: bytes) -> int:
    if secrets:
        return 0
    shown = (done for done, step in enumerate(state.steps) if shows_credentials(step))
    return next(shown, len(state.steps))


def slot_name(want: Want, done: int, owner: Owner | None) -> str:
    whose = "" if owner is None else f"{owner.name}\0{owner.secrets.hex()}"
    return f"{want.state.keys[done]}\0{want.fit}\0{whose}"
