"""What the guest does with frames that no host of ours sends: it ends, at once and in order, and never crashes."""

import random
import struct
from pathlib import Path

import pytest
from raw_guest import RawGuest

from excise.guest import wire


def header(length: int, id: int, kind: int, zero: int = 0) -> bytes:
    return struct.pack("<IIIBBH", length, id, 1, kind, 0, zero)


BROKEN = {
    "a huge length": header(0xFFFFFFFF, 1, wire.RUN),
    "a length just too large": header(wire.MAX_PAYLOAD + 1, 1, wire.RUN),
    "not zero where zero must be": header(0, 1, wire.RUN, 7),
    "no such type": header(0, 1, 99),
    "a guest's own type": header(0, 1, wire.ENDED),
    "action zero": header(0, 0, wire.KILL),
    "a request for action zero": wire.request(wire.RUN, 0, 1, wire.field(wire.TAG_ARG, b"true")),
    "a field beyond the end": wire.frame(wire.RUN, 1, 1, struct.pack("<HHI", wire.TAG_ARG, 0, 100) + b"x"),
    "half a field": wire.frame(wire.RUN, 1, 1, b"\x08\0\0"),
    "a number of three bytes": wire.frame(wire.RUN, 1, 1, wire.field(wire.TAG_TIMEOUT_NS, b"abc")),
    "a NUL in a word": wire.frame(wire.RUN, 1, 1, wire.field(wire.TAG_ARG, b"a\0b")),
    "a variable without =": wire.frame(wire.RUN, 1, 1, wire.field(wire.TAG_ENV, b"name")),
    "credit of three bytes": wire.frame(wire.CREDIT, 1, 1, b"abc", wire.STDOUT),
    "credit for no stream": wire.frame(wire.CREDIT, 1, 1, b"abcd", 3),
    "a second greeting": wire.hello(1, [], "/", None),
    "a greeting that is malformed": wire.frame(wire.HELLO, 0, 2, b"\x01\0\0"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_malformed_ends_the_guest(guest: RawGuest, what: str) -> None:
    guest.send(BROKEN[what])
    assert guest.process.wait(30) == 1


def test_a_number_taken_twice_ends_the_guest(guest: RawGuest) -> None:
    request = wire.request(wire.RUN, 5, 1, wire.field(wire.TAG_ARG, b"sleep") + wire.field(wire.TAG_ARG, b"60"))
    guest.send(request, request)
    assert guest.process.wait(30) == 1


def test_pieces_of_more_than_a_request_may_be_end_the_guest(guest: RawGuest) -> None:
    piece = wire.frame(wire.RUN, 1, 1, b"x" * wire.MAX_PAYLOAD, wire.FLAG_MORE)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        guest.send(piece * 200)
    assert guest.process.wait(30) == 1


def test_frames_of_another_life_are_dropped(guest: RawGuest) -> None:
    guest.send(*(wire.frame(kind, 1, 2, b"\xff" * 7, 0xFF) for kind in (wire.RUN, wire.DATA, wire.KILL, wire.CREDIT, 99)))
    assert guest.run("echo", "x").stdout == b"x\n"


def test_nothing_is_served_before_the_greeting(guest_program: Path) -> None:
    with RawGuest(guest_program, greet=False) as guest:
        guest.send(wire.request(wire.RUN, 1, 0, wire.field(wire.TAG_ARG, b"true")))
        guest.hello(9)
        assert guest.run("echo", "x").stdout == b"x\n"


def test_frames_for_no_action_are_no_harm(guest: RawGuest) -> None:
    guest.send(
        wire.frame(wire.DATA, 99, 1, b"x"),
        wire.frame(wire.EOF, 99, 1),
        wire.credit(99, 1, wire.STDOUT, 5),
        wire.resize(99, 1, 1, 1),
        wire.signal(99, 1, 9),
    )
    assert guest.run("echo", "x").stdout == b"x\n"


def test_too_many_actions_are_refused(guest: RawGuest) -> None:
    first, request = guest.run_frame(["sleep", "60"])
    made = [request] + [guest.run_frame(["true"], flags=wire.FLAG_CHAIN)[1] for _ in range(1100)]
    guest.send(*made)
    refused = [guest.expect(wire.REFUSED, 1 + 1024 + at) for at in range(77)]
    assert "too many" in wire.refusal(refused[0].payload).reason
    guest.kill(first)
    ended = 0
    while ended < 1024:
        ended += guest.frame().type == wire.ENDED
    assert guest.run("echo", "x").stdout == b"x\n"


def test_a_program_must_be_named(guest: RawGuest) -> None:
    number = guest.start()
    assert "no program" in wire.refusal(guest.expect(wire.REFUSED, number).payload).reason


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_never_crash_it(guest: RawGuest, seed: int) -> None:
    """Well-formed headers with random inside, so that all of its parser is reached. It ends with 0 or 1, never by a signal."""
    some = random.Random(seed)  # noqa: S311 - which frames, not a secret
    kinds = (wire.RUN, wire.FILE, wire.DATA, wire.EOF, wire.CREDIT, wire.RESIZE, wire.SIGNAL, wire.KILL)
    for _ in range(200):
        tags = [some.choice((8, 9, 10, 12, 13, 14, 15, 24, 25, 27, 200)) for _ in range(some.randrange(4))]
        fields = b"".join(wire.field(tag, some.randbytes(some.choice((0, 1, 8, 30)))) for tag in tags)
        payload = some.choice((fields, some.randbytes(some.randrange(12)), b""))
        flags = some.choice((0, 0, 1, 2, wire.FLAG_MORE, some.randrange(256)))
        try:
            guest.send(wire.frame(some.choice(kinds), some.randrange(6), 1, payload, flags))
        except (BrokenPipeError, ConnectionResetError):
            break
    guest.socket.close()
    assert guest.process.wait(30) in (0, 1)
