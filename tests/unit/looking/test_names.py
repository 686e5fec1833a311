"""How a sandbox is named by who looks in."""

import os

import pytest

from excise.cli.cp import Place, place
from excise.errors import SpecError
from excise.looking.find import doors
from excise.looking.names import chosen, short
from excise.looking.records import About

CONTAINER = "1e3f497e83520befad83980d1e3f497e83520befad83980d1e3f497e83520bef"
OWNED = "namespace-30302-2342455-bf445e959566"
FOUND = [About(id=one, address="") for one in (CONTAINER, OWNED, "fake-1", "fake-12")]


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        (CONTAINER, "1e3f497e8352"),
        (OWNED, "bf445e959566"),
        ("chroot+guest-1-2-0123456789ab", "0123456789ab"),
        ("fake-1", "fake-1"),
    ],
)
def test_short(id: str, shown: str) -> None:
    assert short(id) == shown


@pytest.mark.parametrize(
    ("given", "meant"),
    [(CONTAINER, 0), ("1e3f", 0), ("bf445e959566", 1), ("9566", 1), (OWNED, 1), ("fake-1", 2), ("fake-12", 3)],
)
def test_enough_of_an_id_names_it(given: str, meant: int) -> None:
    assert chosen(given, FOUND) is FOUND[meant]


@pytest.mark.parametrize(("given", "said"), [("nope", "excise ps"), ("", "excise ps"), ("fake", "could be fake-1, fake-12")])
def test_what_names_none_or_two_is_told(given: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        chosen(given, FOUND)


def test_the_kernels_list_is_read_for_us_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "0000000000000000: 00000002 00000000 00010000 0001 01 1234"
    names = (" @excise/7/11/a-b", " @excise/8/12/c d", " @excise/8/13/e", " /tmp/x", "", " @excise/x/1/y")
    listed = "Num RefCount\n" + "".join(f"{line}{name}\n" for name in names)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert [(door.uid, door.pid, door.id, door.name) for door in doors(listed)] == [(7, 11, "a-b", b"\0excise/7/11/a-b")]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [door.id for door in doors(listed)] == ["a-b", "e"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("abc:/a/../b", Place("abc", "/b")),
        ("abc:b", Place(None, "abc:b")),
        ("./abc:/b", Place(None, "./abc:/b")),
        (":/b", Place(None, ":/b")),
        ("-", Place(None, "-")),
    ],
)
def test_which_side_is_inside(text: str, meant: Place) -> None:
    assert place(text) == meant
