"""One string names a substrate: what it spells, its one canonical spelling, and what is refused."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.address import Address, parse
from excise.errors import SpecError

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
ADDRESSES = st.builds(
    Address,
    name=NAMES,
    guest=st.booleans(),
    options=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=3),
    wrappers=st.sampled_from([(), ("pool",), ("pool", "pool")]),
)


@given(ADDRESSES)
@settings(derandomize=True)
def test_what_an_address_spells_is_that_address(address: Address) -> None:
    assert parse(str(address)) == address


@given(st.text(max_size=20) | st.text("ab+:?&=,%/.pol", max_size=20))
@settings(derandomize=True)
def test_any_text_is_an_address_with_one_spelling_or_refused_in_a_sentence(text: str) -> None:
    try:
        address, said = parse(text), ""
    except SpecError as refused:
        address, said = None, str(refused)
    assert is_one_sentence(said)
    if address is not None:
        assert str(parse(str(address))) == str(address)


def is_one_sentence(text: str) -> bool:
    """Apart from what it quotes."""
    spoken = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", text)
    return "\n" not in text and not re.search(r"[.!?]\s+[A-Z]", spoken)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("docker", Address(name="docker")),
        ("docker+guest", Address(name="docker", guest=True)),
        ("pool:docker", Address(name="docker", wrappers=("pool",))),
        ("pool:pool:docker", Address(name="docker", wrappers=("pool", "pool"))),
        ("fake?a=1&b=x%20y", Address(name="fake", options={"a": "1", "b": "x y"})),
        ("fake?a=", Address(name="fake", options={"a": ""})),
        ("fake:a=1,b=2", Address(name="fake", options={"a": "1", "b": "2"})),
        (
            "pool:docker+guest?host=unix:///run/docker.sock",
            Address(name="docker", guest=True, wrappers=("pool",), options={"host": "unix:///run/docker.sock"}),
        ),
        ("pool:fake:broken=cwd", Address(name="fake", wrappers=("pool",), options={"broken": "cwd"})),
        ("https://host:8700", Address(name="remote", url="https://host:8700")),
        ("unix:///run/excise.sock", Address(name="remote", url="unix:///run/excise.sock")),
    ],
)
def test_the_grammar(text: str, address: Address) -> None:
    assert parse(text) == address


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("fake:broken=x", "fake?broken=x"),
        ("pool:docker+guest?host=unix:///run/docker.sock", "pool:docker+guest?host=unix:///run/docker.sock"),
        ("fake?a=x%20y", "fake?a=x+y"),
        ("https://host:8700/?a=b", "https://host:8700/?a=b"),
    ],
)
def test_there_is_one_canonical_spelling(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a name"),
        ("Docker", "'Docker' is not a name"),
        ("1st", "'1st' is not a name"),
        ("docker ", "'docker ' is not a name"),
        ("pool:", "'' is not a name"),
        ("swarm/x", "'swarm/x' is not a name"),
        ("docker+host", "'+host' is not a path; there is +guest"),
        ("docker+", "'+' is not a path"),
        ("docker+guest+guest", "'+guest+guest' is not a path"),
        ("fake:broken", "'broken' is not key=value"),
        ("fake?broken", "'broken' is not key=value"),
        ("fake?a=1&&b=2", "'a=1&&b=2' is not key=value"),
        ("fake?=1", "'=1' is not key=value"),
        ("fake:", "no option follows"),
        ("fake?", "no option follows"),
        ("fake?a=1&a=2", "a key is given twice"),
        ("fake:a=1,a=2", "a key is given twice"),
        ("fake:a=1?b=2", "options are given twice"),
        ("https://", "no host follows"),
        ("unix://", "no host follows"),
    ],
)
def test_what_is_malformed_is_refused_with_its_reason_and_a_model(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(text)
    said = str(refused.value)
    assert said.startswith(f"{text!r} is not an address: {reason}")
    assert "looks like docker, pool:docker+guest or local?key=value" in said
    assert is_one_sentence(said)
