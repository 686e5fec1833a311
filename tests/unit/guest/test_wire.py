"""Frames: what we send is what the C side reads, and what no guest of ours sends is refused."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.action import End
from excise.errors import SpecError
from excise.guest import wire

TOP = Path(__file__).parents[3]


def c_numbers() -> dict[str, int]:
    """Every number that wire.h gives a name to."""
    text = (TOP / "native/common/wire.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found: dict[str, int] = {}
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, flags=re.DOTALL):
        for name, value in re.findall(r"(\w+)\s*=\s*([\d<\s]+)", body):
            parts = [int(part) for part in value.split("<<")]
            found[name] = parts[0] << (parts[1] if len(parts) > 1 else 0)
    return found


def test_every_number_of_the_c_side_is_ours() -> None:
    numbers = c_numbers()
    assert len(numbers) > 60
    assert {name: getattr(wire, name.removeprefix("WIRE_"), None) for name in numbers} == numbers


def test_we_have_no_number_that_the_c_side_has_not() -> None:
    theirs = {name.removeprefix("WIRE_") for name in c_numbers()}
    ours = {
        name for name, value in vars(wire).items() if name.isupper() and not name.startswith("_") and isinstance(value, int)
    }
    assert ours - theirs == set()


def test_a_request_that_fits_is_one_frame() -> None:
    made = wire.request(wire.RUN, 7, 3, wire.field(wire.TAG_ARG, b"true"), wire.FLAG_MERGE)
    assert made == struct.pack("<IIIBBH", 12, 7, 3, 16, 1, 0) + struct.pack("<HHI", 8, 0, 4) + b"true"


def test_a_larger_one_goes_on_in_the_next_frame_and_says_so() -> None:
    fields = wire.field(wire.TAG_SCRIPT, bytes(600_000))
    made, pieces, at = wire.request(wire.RUN, 7, 3, fields, wire.FLAG_MERGE), [], 0
    while at < len(made):
        length, action, epoch, kind, flags, zero = struct.unpack_from("<IIIBBH", made, at)
        assert (action, epoch, kind, zero) == (7, 3, wire.RUN, 0)
        assert length <= wire.MAX_PAYLOAD
        pieces.append((flags, made[at + 16 : at + 16 + length]))
        at += 16 + length
    assert [flags for flags, _ in pieces] == [129, 129, 1]
    assert b"".join(piece for _, piece in pieces) == fields


def test_a_request_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(SpecError, match="at most 16777216 bytes"):
        wire.request(wire.RUN, 1, 1, bytes(wire.MAX_REQUEST + 1))


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_system_passes_on_is_refused(value: str) -> None:
    with pytest.raises(SpecError):
        wire.text(value)


@pytest.mark.parametrize("name", ["", "a=b", "a\0"])
def test_a_variable_needs_a_name(name: str) -> None:
    with pytest.raises(SpecError):
        wire.variable(name, "x")


def test_odd_bytes_come_back_as_they_were() -> None:
    entry = struct.pack("<IIB3sIIIQq", 2, 0, 1, bytes(3), 0o100644, 1, 2, 3, 4) + b"\xff\xfe"
    (found,) = wire.entries(entry)
    assert wire.text(found.name) == b"\xff\xfe"


# ---- what a guest says


def head(kind: int = wire.STARTED, *, length: int = 0, action: int = 1, flags: int = 0, zero: int = 0) -> bytes:
    return struct.pack("<IIIBBH", length, action, 7, kind, flags, zero)


@pytest.mark.parametrize(
    "frame",
    [
        head(wire.OUTPUT, length=wire.MAX_PAYLOAD + 1, flags=1),
        head(wire.OUTPUT, length=0xFFFFFFFF, flags=1),
        head(wire.OUTPUT, length=0, flags=1),
        head(wire.OUTPUT, length=5, flags=0),
        head(wire.OUTPUT, length=5, flags=3),
        head(wire.CREDIT, length=4, flags=1),
        head(wire.CREDIT, length=8),
        head(wire.ENDED, length=39),
        head(wire.STARTED, length=1),
        head(wire.KILLED, flags=1),
        head(wire.HELLO, action=1),
        head(wire.STARTED, action=0),
        head(wire.REFUSED, length=1 << 17),
        head(wire.RUN),
        head(0),
        head(255),
        head(zero=1),
    ],
)
def test_a_header_that_no_guest_sends_is_refused(frame: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.header(frame)


def test_a_header_is_read() -> None:
    assert wire.header(b"xx" + head(wire.OUTPUT, length=5, action=6, flags=2), 2) == wire.Header(5, 6, 7, wire.OUTPUT, 2)


@pytest.mark.parametrize("payload", [b"\1", struct.pack("<HHI", 1, 0, 9) + bytes(8), struct.pack("<HHI", 1, 1, 0)])
def test_fields_that_do_not_add_up_are_refused(payload: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        list(wire.fields(payload))


def test_a_guest_of_another_version_is_refused() -> None:
    assert wire.greeting(wire.number(wire.TAG_VERSION, 1) + wire.number(wire.TAG_ABILITIES, 6)) == 6
    for payload in (b"", wire.number(wire.TAG_VERSION, 2), wire.field(wire.TAG_VERSION, b"1")):
        with pytest.raises(wire.ProtocolError):
            wire.greeting(payload)


def ended(end: int = 0, flags: int = 0, *, zero: int = 0, code: int = 0, signal: int = 0, error: int = 0) -> bytes:
    return struct.pack("<BBHiiiQQQ", end, flags, zero, code, signal, error, 5, 6, 7)


def test_an_end_is_read() -> None:
    seen = wire.ended(ended(wire.END_EXITED, wire.ENDED_HAS_CODE | wire.ENDED_STILL_RUNNING, code=-3))
    assert (seen.end, seen.exit_code, seen.still_running, seen.guest_ns, seen.cpu_ns) == (End.EXITED, -3, True, 5, None)
    seen = wire.ended(ended(wire.END_KILLED, wire.ENDED_HAS_USAGE | wire.ENDED_SESSION_REPLACED, signal=9))
    assert (seen.end, seen.killed, seen.session_replaced, seen.cpu_ns, seen.max_rss_bytes) == (End.SIGNALED, True, True, 6, 7)
    assert wire.ended(ended(wire.END_SKIPPED)).end is None


@pytest.mark.parametrize(
    "record", [ended(8), ended(255), ended(flags=16), ended(zero=1), ended(signal=-1), ended(signal=65), ended(error=-1)]
)
def test_an_end_that_no_guest_tells_is_refused(record: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.ended(record)


def test_entries_are_sorted_by_name() -> None:
    def entry(name: bytes, kind: int, target: bytes = b"") -> bytes:
        return struct.pack("<IIB3sIIIQq", len(name), len(target), kind, bytes(3), 0o644, 1, 2, 3, 4) + name + target

    found = wire.entries(entry(b"b", 3, b"there") + entry(b"a", 2))
    assert [(f.name, f.kind, f.target) for f in found] == [("a", "directory", None), ("b", "link", "there")]
    for broken in (entry(b"a", 5), entry(b"a", 0), entry(b"a", 1)[:-1], entry(b"a", 1)[:20], b"x"):
        with pytest.raises(wire.ProtocolError):
            wire.entries(broken)


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    """No other exception: it would not end the link but the loop's callback."""
    for read in (lambda d: list(wire.fields(d)), wire.greeting, wire.refusal, wire.entries):
        try:
            read(data)
        except wire.ProtocolError:
            continue
    try:
        wire.header(data[:16].ljust(16, b"\0"))
        wire.ended(data[:40].ljust(40, b"\0"))
    except wire.ProtocolError:
        return
