"""Frames of a channel, version 1: pure functions over bytes, bounded whatever the other side sends.

`design/serve.md` says why they are what they are. Neither side trusts the other: the first frame that none of ours sends ends
the channel.
"""

import struct
from typing import NamedTuple

VERSION = 1
HEADER_BYTES = 16
MAX_PAYLOAD = 65536
WINDOW = 131072
"""Bytes of one direction of one call that may be on their way."""
SHORT_BYTES = 65536
"""A record of up to so many bytes is sent at once; a longer one within a window, as a call's bytes are."""
MAX_LONG = 320 << 20
"""The most bytes of a long one: a file that is read or written whole is one."""

# both ways
SEEN, DATA, EOF, CREDIT, BYE = 1, 2, 3, 4, 5
# client to server
CALL, TELL, CANCEL = 16, 17, 18
# server to client
ANSWER, STARTED = 32, 33

FLAG_STDERR = 1
"""Of DATA from a server."""

_HEADER = struct.Struct("<IIIBBH")
_U32 = struct.Struct("<I")
_BOTH = {SEEN: (0, 0), DATA: (1, MAX_PAYLOAD), EOF: (0, 0), CREDIT: (4, 4), BYE: (0, 4096)}
FROM_CLIENT = _BOTH | {CALL: (1, SHORT_BYTES), TELL: (1, 4096), CANCEL: (0, 0)}
FROM_SERVER = _BOTH | {ANSWER: (1, SHORT_BYTES + 64), STARTED: (0, 0)}
"""Which types come from whom, and the least and the most bytes of their payloads."""


class ProtocolError(Exception):
    """The other side sent what none of ours sends."""


class Header(NamedTuple):
    """The 16 bytes before each payload."""

    length: int
    call: int
    seen: int
    """How many of our frames had come when this one was sent, modulo 2^32."""
    type: int
    flags: int


def pack(type: int, call: int, seen: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return _HEADER.pack(len(payload), call, seen & 0xFFFFFFFF, type, flags, 0) + payload


def again(frame: bytes, seen: int) -> bytes:
    """The same frame, as it is sent now."""
    return frame[:8] + _U32.pack(seen & 0xFFFFFFFF) + frame[12:]


def header(buffer: bytes | bytearray | memoryview, at: int, known: dict[int, tuple[int, int]]) -> Header:
    """The header at `at`, of which all 16 bytes are there; refused if `known` has no such frame."""
    length, call, seen, kind, flags, zero = _HEADER.unpack_from(buffer, at)
    least, most = known.get(kind, (1, 0))
    if zero or not least <= length <= most or flags & ~(FLAG_STDERR if kind == DATA else 0):
        raise ProtocolError(f"a frame of type {kind} with {length} bytes and the flags {flags}")
    if (call == 0) != (kind in (SEEN, BYE)):
        raise ProtocolError(f"a frame of type {kind} for call {call}")
    return Header(length, call, seen, kind, flags)


def amount(count: int) -> bytes:
    """The payload of a CREDIT."""
    return _U32.pack(count)


def granted(payload: bytes) -> int:
    return _U32.unpack(payload)[0]
