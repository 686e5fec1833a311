"""What a living sandbox may become, by its substrate's Capabilities alone."""

from typing import Any

import msgspec
import pytest

from excise.action import Shell
from excise.adoption import require_adoption, same_making, same_terms
from excise.errors import SpecError
from excise.spec import Allow, Limits, Mount, Secret, Spec, Step
from excise.substrate import Capabilities

NETWORKS: Any = frozenset({"none", "allow", "open"})
SIZES: Any = frozenset({"memory_bytes", "cpus", "pids", "disk_bytes", "inodes"})
RIGID = Capabilities(limits=SIZES, network=NETWORKS, build_network=True, users=True, mounts=True, devices=True)
ABLE = Capabilities(
    limits=SIZES,
    network=NETWORKS,
    build_network=True,
    users=True,
    mounts=True,
    devices=True,
    adopts=SIZES | {"network", "secrets"},
)
FETCH = Step("fetch", (Shell("true"),))


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "other"},
        {"env": {"A": "1"}},
        {"workdir": "/srv"},
        {"user": "me"},
        {"mounts": (Mount("/a", "/b"),)},
        {"devices": ("/dev/fuse",)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_sandbox_is_made_with_is_never_adopted(changes: dict[str, Any]) -> None:
    (field,) = changes
    with pytest.raises(SpecError, match=f"{field} is what a sandbox is made with"):
        require_adoption(Spec(), Spec(**changes), ABLE, "x")
    assert not same_making(Spec(), Spec(**changes))


TERMS: list[tuple[str, dict[str, Any]]] = [
    ("memory_bytes", {"limits": Limits(memory_bytes=1 << 26)}),
    ("cpus", {"limits": Limits(cpus=0.5)}),
    ("pids", {"limits": Limits(pids=64)}),
    ("disk_bytes", {"limits": Limits(disk_bytes=1 << 26)}),
    ("inodes", {"limits": Limits(inodes=1000)}),
    ("network", {"network": "open"}),
    ("network", {"network": Allow(("example.org",))}),
    ("network", {"network": "none", "build_network": "open", "steps": (FETCH,)}),
    ("secrets", {"secrets": {"KEY": Secret("value")}}),
]


@pytest.mark.parametrize(("term", "changes"), TERMS)
def test_a_term_is_taken_on_where_it_is_declared_and_refused_where_it_is_not(term: str, changes: dict[str, Any]) -> None:
    other = Spec(**changes)
    for was, spec in ((Spec(), other), (other, Spec())):
        require_adoption(was, spec, ABLE, "x")
        if "steps" in changes and was is other:
            continue  # its steps are done: both have the network "none"
        with pytest.raises(SpecError, match=f"x cannot change {term} of a living sandbox"):
            require_adoption(was, spec, RIGID, "x")
    assert same_making(Spec(), other)


def test_what_is_equal_is_no_change() -> None:
    """Secrets by their values, and no network said aloud is the network "none" where there is that."""
    was = Spec(secrets={"KEY": Secret("same")}, limits=Limits(pids=64), labels={"a": "b"})
    now = Spec(secrets={"KEY": Secret("same")}, limits=Limits(pids=64), network="none", steps=(FETCH,), boot=(Shell("true"),))
    require_adoption(was, now, msgspec.structs.replace(RIGID, background=True), "x")
    with pytest.raises(SpecError, match="cannot change secrets"):
        require_adoption(was, Spec(limits=Limits(pids=64), secrets={"KEY": Secret("other")}), RIGID, "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": Limits(pids=7)},
        {"network": "open"},
        {"build_network": "open"},
        {"secrets": {"KEY": Secret("value")}},
        {"env": {"A": "1"}},
        {"image": "other"},
        {"isolation": "own"},
        {"needs": frozenset({"attach"})},
        {"steps": (FETCH,)},
        {"repo": "https://host/x@1"},
        {"deps": "install"},
        {"boot": (Shell("true"),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_terms_are_the_same_only_if_there_is_nothing_to_do(changes: dict[str, Any]) -> None:
    was = Spec(needs=frozenset({"adopts"}), steps=(FETCH,))
    assert same_terms(was, Spec(labels={"owner": "me"}, ready=(Shell("true"),)))
    assert not same_terms(was, Spec(**changes))
    if "secrets" in changes:
        assert not same_terms(msgspec.structs.replace(was, **changes), Spec())


def test_a_build_network_of_no_steps_is_no_change() -> None:
    require_adoption(Spec(), Spec(network="none", build_network="open"), RIGID, "x")


def test_what_no_sandbox_of_the_substrate_can_be_is_refused_as_by_create() -> None:
    with pytest.raises(SpecError, match="does not enforce limits on pids"):
        require_adoption(Spec(), Spec(limits=Limits(pids=1)), Capabilities(adopts=frozenset({"pids"})), "x")
