"""A living sandbox that becomes another spec's: what of it may differ, and what must be the same."""

from typing import Any

from excise.errors import SpecError
from excise.spec import Limits, Network, Spec
from excise.substrate import Capabilities, require

ABILITY = "adopts"
"""In the `needs` of the spec that a sandbox is made of: it will be given other terms, and is prepared for that."""
_MADE_WITH = ("image", "env", "workdir", "user", "mounts", "devices")


def require_adoption(was: Spec, spec: Spec, capabilities: Capabilities, address: str) -> None:
    """Refuse, in one sentence, a spec that a sandbox made of `was` cannot become one of."""
    require(spec, capabilities, address)
    for field in _MADE_WITH:
        if getattr(was, field) != getattr(spec, field):
            raise SpecError(f"adopt: {field} is what a sandbox is made with, and differs here; make another sandbox")
    fixed = sorted(_changed(was, spec, capabilities) - capabilities.adopts)
    if fixed:
        raise SpecError(f"{address} cannot change {', '.join(fixed)} of a living sandbox; make another one")


def same_making(one: Spec, other: Spec) -> bool:
    """Whether a sandbox of the one can be in a state of the other's: they differ in steps and terms at most."""
    return one is other or all(getattr(one, field) == getattr(other, field) for field in _MADE_WITH)


def same_terms(was: Spec, spec: Spec) -> bool:
    """Whether nothing of a sandbox of `was` changes and nothing is run in it: there is nothing to refuse, nor to do.

    Most claims of a warm pool are such, and come many at once.
    """
    if spec.steps or spec.repo is not None or spec.deps is not None or spec.boot or spec.secrets or was.secrets:
        return False
    terms = was.limits == spec.limits and was.network == spec.network and was.build_network == spec.build_network
    return terms and was.isolation == spec.isolation and spec.needs <= was.needs and same_making(was, spec)


def _changed(was: Spec, spec: Spec, capabilities: Capabilities) -> set[str]:
    """The terms that are not the same."""
    found = {name for name in Limits.__struct_fields__ if getattr(was.limits, name) != getattr(spec.limits, name)}
    if _revealed(was) != _revealed(spec):
        found.add("secrets")
    closed: Network | None = "none" if "none" in capabilities.network else None  # what no network said aloud means
    before, after = was.network or closed, spec.network or closed
    build = spec.build_network or after
    if before != after or (spec.all_steps() and build != before):
        found.add("network")
    return found


def _revealed(spec: Spec) -> dict[str, Any]:
    return {name: secret.reveal() for name, secret in spec.secrets.items()}
