"""What a sandbox holds: its image, what its steps saw, and the steps that were run; as hash chains that are looked up.

A state is no more than that. Limits, network, labels and secrets are terms, applied when a sandbox is claimed; a term that the
source cannot give to a living sandbox is part of the `fit` instead, which must be equal.
"""

import hashlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from excise.spec import Spec, Stage, Step

_VERSION = 1
_DEPTHS = (Stage.BASE, Stage.IMAGE, Stage.REPO, Stage.DEPS)


class State(NamedTuple):
    """A row of steps over an image. Compare states by `key`: the rest follows from it."""

    image: str
    env: tuple[tuple[str, str], ...]
    workdir: str | None
    user: str | None
    steps: tuple[Step, ...]
    digests: tuple[str, ...]
    """One for each step: its actions and its lock, wherever it stands."""
    keys: tuple[str, ...]
    """`keys[n]` is the state after the first n steps: one more than there are steps."""
    families: tuple[str, ...]
    """The same with siblings alike: there is a plan from `a` to `b` if and only if `a.family == b.families[len(a.steps)]`."""

    @property
    def key(self) -> str:
        return self.keys[-1]

    @property
    def family(self) -> str:
        return self.families[-1]

    @property
    def stage(self) -> Stage:
        """The depth of the pool it belongs to: that of its deepest step."""
        return deepest(self.steps)

    def upto(self, count: int) -> "State":
        """The state after its first `count` steps."""
        return self._replace(
            steps=self.steps[:count],
            digests=self.digests[:count],
            keys=self.keys[: count + 1],
            families=self.families[: count + 1],
        )


def state_of(spec: Spec) -> State:
    """What a sandbox of `spec` holds when it is ready."""
    steps = spec.all_steps()
    env = tuple(sorted(spec.env.items()))
    digests = tuple([digest(step) for step in steps])
    keys, families = _chains(_hash("", (_VERSION, spec.image, env, spec.workdir, spec.user)), steps, digests)
    return State(spec.image, env, spec.workdir, spec.user, steps, digests, keys, families)


def digest(step: Step) -> str:
    """What a step does and what its outcome depends on; not its name, its stage, nor who shares it."""
    return _hash("", (step.actions, step.lock))


def deepest(steps: Collection[Step]) -> Stage:
    """IMAGE if there are none: a sandbox of the image, and nothing more."""
    return max((step.stage for step in steps), key=_DEPTHS.index, default=Stage.IMAGE)


def has_siblings(step: Step) -> bool:
    """Whether something leads from another step of the same `of` to this one."""
    return bool(step.of and step.switch)


def _chains(start: str, steps: tuple[Step, ...], digests: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    key = family = start
    keys, families = [key], [family]
    below = False  # whether a step with siblings lies below
    for step, made in zip(steps, digests, strict=True):
        key = _link(key, "step", made)
        if has_siblings(step):
            below = True
            family = _link(family, "of", step.of)
        elif step.lock is None and below:
            # What it led to depends on which sibling lay below: it has no family but itself.
            family = _link(family, "state", key)
        else:
            family = _link(family, "step", made)
        keys.append(key)
        families.append(family)
    return tuple(keys), tuple(families)


def _link(before: str, kind: str, what: str) -> str:
    return hashlib.sha256(f"{before}\0{kind}\0{what}".encode()).hexdigest()


def _hash(before: str, what: object) -> str:
    return hashlib.sha256(before.encode() + b"\0" + msgspec.json.encode(what, order="deterministic")).hexdigest()


def fit_of(spec: Spec, adopts: Collection[str], secrets: bytes) -> str:
    """Of what a claim cannot change: mounts, devices, and the terms that the source does not adopt. "" if there is nothing.

    A source that adopts networks opens and closes the build network by itself; one that does not must have been made with it.
    `secrets`: the keyed digest by which they are compared (owners.py), never a value.
    `isolation` and `needs` are questions to the source as a whole, which answers them the same for all its sandboxes.
    """
    fixed: list[tuple[str, object]] = []
    if spec.mounts:
        fixed.append(("mounts", spec.mounts))
    if spec.devices:
        fixed.append(("devices", spec.devices))
    limits = sorted(spec.limits.asked().difference(adopts))
    fixed.extend((name, getattr(spec.limits, name)) for name in limits)
    if "network" not in adopts and (spec.network is not None or spec.build_network is not None):
        fixed.append(("network", (spec.network, spec.build_network)))
    if "secrets" not in adopts and spec.secrets:
        fixed.append(("secrets", secrets))
    return _hash("", fixed) if fixed else ""


def shows_secrets(spec: Spec) -> bool:
    """Whether a step of `spec` saw a secret: what it led to is its owner's from then on."""
    return bool(spec.secrets) and bool(spec.all_steps())


def ahead(spec: Spec, count: int, adopts: Collection[str]) -> Spec:
    """What is made before anyone asks: the first `count` steps of `spec`, and of its terms those that cannot be given later.

    Nothing is booted and no ready command run, nor is a secret shown, unless the source can give it in no other way.
    """
    return msgspec.structs.replace(
        spec.with_steps(spec.all_steps()[:count]),
        boot=(),
        ready=(),
        labels={},
        secrets={} if "secrets" in adopts else spec.secrets,
    )
