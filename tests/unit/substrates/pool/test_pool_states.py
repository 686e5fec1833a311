"""What a state is and is not: what its keys depend on, what must be equal besides, and that no secret is in either."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from excise.action import Exec, Shell
from excise.spec import Allow, Limits, Mount, Secret, Spec, Stage, Step
from excise.substrates.pool.owners import Owners
from excise.substrates.pool.state import State, ahead, fit_of, shows_secrets, state_of

ALL = frozenset({*Limits.__struct_fields__, "network", "secrets"})
WHOLE = Spec(
    image="i",
    repo="https://host/x.git@1",
    deps="install",
    lock="l",
    steps=(Step("more", (Shell("more"),)),),
    env={"A": "1", "B": "2"},
    workdir="/w",
    user="u",
)


def changed(**fields: Any) -> State:
    return state_of(msgspec.structs.replace(WHOLE, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": Limits(memory_bytes=1)},
        {"network": "open"},
        {"build_network": "open"},
        {"secrets": {"TOKEN": Secret("value")}},
        {"labels": {"owner": "me"}},
        {"boot": (Exec(("x",)),)},
        {"ready": (Exec(("x",)),)},
        {"mounts": (Mount("/a", "/b"),)},
        {"steps": (Step("another name", (Shell("more"),), Stage.IMAGE, share=False),)},
        {"env": {"B": "2", "A": "1"}},
    ],
)
def test_terms_and_names_are_no_state(fields: Mapping[str, Any]) -> None:
    assert changed(**fields).keys == state_of(WHOLE).keys
    assert changed(**fields).families == state_of(WHOLE).families


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"image": "j"}, 0),
        ({"env": {"A": "1"}}, 0),
        ({"workdir": "/v"}, 0),
        ({"workdir": None}, 0),
        ({"user": "v"}, 0),
        ({"repo": "https://host/y.git@1"}, 1),
        ({"repo": "https://host/x.git@2"}, 1),
        ({"deps": "install more"}, 2),
        ({"lock": "m"}, 2),
        ({"lock": None}, 2),
        ({"steps": (Step("more", (Shell("other"),)),)}, 3),
        ({"steps": (Step("more", (Shell("more", env={"C": "3"}),)),)}, 3),
        ({"steps": ()}, 3),
    ],
)
def test_keys_are_a_chain_equal_as_far_as_the_states_are(fields: Mapping[str, Any], same: int) -> None:
    one, other = state_of(WHOLE).keys, changed(**fields).keys
    assert one[:same] == other[:same]
    assert not set(one[same:]) & set(other[same:])


def test_the_state_after_some_steps_is_that_of_a_spec_with_these_alone() -> None:
    whole = state_of(WHOLE)
    for count in range(len(whole.steps) + 1):
        assert whole.upto(count) == state_of(ahead(WHOLE, count, ALL))
    assert [whole.upto(count).stage for count in range(4)] == [Stage.IMAGE, Stage.REPO, Stage.DEPS, Stage.DEPS]


def test_urls_of_one_repository_are_one_family() -> None:
    families = {
        state_of(Spec(repo=f"{url}@{commit}")).family
        for url in ("https://host/x", "https://host/x.git", "https://host/x/")
        for commit in "12"
    }
    assert len(families) == 1
    assert state_of(Spec(repo="https://host/xy@1")).family not in families


def test_what_is_made_ahead_shows_no_secret_and_boots_nothing() -> None:
    spec = msgspec.structs.replace(
        WHOLE, secrets={"T": Secret("v")}, boot=(Exec(("b",)),), ready=(Exec(("r",)),), labels={"owner": "me"}
    )
    made = ahead(spec, 2, ALL)
    assert (made.secrets, made.boot, made.ready, made.labels) == ({}, (), (), {})
    assert [step.name for step in made.all_steps()] == ["repo", "deps"]
    assert made.all_steps() == spec.all_steps()[:2]  # with their siblings and locks
    assert ahead(spec, 2, frozenset()).secrets == spec.secrets
    assert shows_secrets(spec)
    assert not shows_secrets(msgspec.structs.replace(spec, secrets={}))
    assert not shows_secrets(Spec(secrets=spec.secrets))


@pytest.mark.parametrize(
    ("term", "fields"),
    [
        ("pids", {"limits": Limits(pids=5, cpus=2.0)}),
        ("network", {"network": Allow(("host",))}),
        ("network", {"build_network": "open"}),
        ("secrets", {"secrets": {"T": Secret("v")}}),
        (None, {"mounts": (Mount("/a", "/b"),)}),
        (None, {"devices": ("/dev/kvm",)}),
    ],
)
def test_what_a_source_cannot_adopt_must_fit(term: str | None, fields: dict[str, Any]) -> None:
    owners = Owners()

    def fit(adopts: frozenset[str], **fields: Any) -> str:
        spec = Spec(**fields)
        return fit_of(spec, adopts, owners.digest(spec.secrets))

    assert fit(frozenset()) == fit(ALL) == ""
    assert fit(ALL - {term}, **fields) == fit(ALL - {term}, **fields) != ""
    assert (fit(ALL, **fields) == "") is (term is not None)


def test_no_secret_value_is_in_a_state_or_a_fit_nor_can_a_fit_be_made_elsewhere() -> None:
    spec = msgspec.structs.replace(WHOLE, secrets={"TOKEN": Secret("hunter2")})
    here, there = Owners(), Owners()
    fits = [fit_of(spec, frozenset(), owners.digest(spec.secrets)) for owners in (here, here, there)]
    assert fits[0] == fits[1] != fits[2]
    assert "hunter2" not in repr((state_of(spec), fits))
    other = {"TOKEN": Secret("hunter3")}
    assert fit_of(spec, frozenset(), here.digest(other)) != fits[0]
