"""Frames between the host and the guest, version 1: pure functions over bytes, bounded whatever the other side sends.

`native/common/wire.h` says the same, `design/guest.md` why. What a guest sends is not trusted: it runs next to sandboxed code.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from excise.action import End, FileInfo
from excise.errors import SpecError

VERSION = 1
HEADER_BYTES = 16
FIELD_BYTES = 8
MAX_PAYLOAD = 262144
MAX_REQUEST = 16 << 20
WINDOW = 262144

# both ways
HELLO, CREDIT = 1, 2
# host to guest
RUN, FILE, DATA, EOF, RESIZE, SIGNAL, KILL, FREEZE, THAW, RENEW = range(16, 26)
# guest to host
STARTED, OUTPUT, ENDED, KILLED, REFUSED, FROZEN = range(32, 38)

FLAG_MERGE, FLAG_PTY, FLAG_STDIN, FLAG_STARTED, FLAG_CHAIN, FLAG_STOP, FLAG_MORE = 1, 2, 4, 8, 16, 32, 128
FLAG_ROOT = 1  # of HELLO
STDIN, STDOUT, STDERR = 0, 1, 2

ABILITY_OPAQUE_SHELL = 1
TAG_VERSION, TAG_ABILITIES, TAG_MESSAGE, TAG_ERRNO = 1, 2, 3, 4
TAG_ARG, TAG_ENV, TAG_CWD, TAG_USER, TAG_SESSION, TAG_SCRIPT, TAG_TIMEOUT_NS, TAG_WINDOW, TAG_ROWS, TAG_COLUMNS = range(8, 18)
TAG_OPERATION, TAG_PATH, TAG_TARGET, TAG_OFFSET, TAG_LENGTH, TAG_MODE, TAG_FLAG, TAG_PORT = range(24, 32)

FILE_READ, FILE_WRITE, FILE_LIST, FILE_STAT, FILE_REMOVE, FILE_MOVE, FILE_MAKE_DIR = range(1, 8)
FILE_UNTAR, FILE_TAR, FILE_CONNECT = range(8, 11)

END_EXITED, END_SIGNALED, END_TIMED_OUT, END_OUT_OF_MEMORY, END_OUT_OF_DISK, END_OUT_OF_PIDS, END_SKIPPED, END_KILLED = range(8)
ENDED_STILL_RUNNING, ENDED_SESSION_REPLACED, ENDED_HAS_CODE, ENDED_HAS_USAGE = 1, 2, 4, 8

_HEADER = struct.Struct("<IIIBBH")
_FIELD = struct.Struct("<HHI")
_NUMBER = struct.Struct("<HHIQ")
_U32 = struct.Struct("<I")
_SIZE = struct.Struct("<II")
_ENDED = struct.Struct("<BBHiiiQQQ")
ID_BYTES, SEED_BYTES = 16, 64
_RENEWAL = struct.Struct("<Q16s64s")
_ENTRY = struct.Struct("<IIB3sIIIQq")
_ENDS = (End.EXITED, End.SIGNALED, End.TIMED_OUT, End.OUT_OF_MEMORY, End.OUT_OF_DISK, End.OUT_OF_PIDS)
_KINDS: dict[int, Literal["file", "directory", "link", "other"]] = {1: "file", 2: "directory", 3: "link", 4: "other"}
# Which types come from a guest, and the least and the most bytes of their payloads.
_PAYLOAD_BYTES = {
    HELLO: (0, 4096),
    CREDIT: (4, 4),
    STARTED: (0, 0),
    OUTPUT: (1, MAX_PAYLOAD),
    ENDED: (_ENDED.size, _ENDED.size),
    KILLED: (0, 0),
    FROZEN: (0, 0),
    REFUSED: (0, 65536),
}


class ProtocolError(Exception):
    """The other side sent what no guest of ours sends."""


class Header(NamedTuple):
    """The 16 bytes before each payload."""

    length: int
    id: int
    epoch: int
    type: int
    flags: int


class Ended(NamedTuple):
    """How an action ended; `end` is None for one that was skipped."""

    end: End | None
    killed: bool
    still_running: bool
    session_replaced: bool
    exit_code: int | None
    signal: int
    error: int
    guest_ns: int
    cpu_ns: int | None
    max_rss_bytes: int | None


# ---- to the guest


def text(value: str) -> bytes:
    """`value` as the guest's bytes: UTF-8, and what a guest's own odd bytes were decoded to comes back as they were."""
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SpecError("a text cannot hold half a surrogate pair: no encoding passes it on") from None
    if b"\0" in data:
        raise SpecError("a name, path or variable cannot hold a NUL byte: no system passes one on")
    return data


def field(tag: int, data: bytes) -> bytes:
    return _FIELD.pack(tag, 0, len(data)) + data


def number(tag: int, value: int) -> bytes:
    return _NUMBER.pack(tag, 0, 8, value)


def frame(type: int, id: int, epoch: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return _HEADER.pack(len(payload), id, epoch, type, flags, 0) + payload


def request(type: int, id: int, epoch: int, fields: bytes, flags: int = 0) -> bytes:
    """A request in as many frames as it needs."""
    if len(fields) <= MAX_PAYLOAD:
        return _HEADER.pack(len(fields), id, epoch, type, flags, 0) + fields
    if len(fields) > MAX_REQUEST:
        raise SpecError(f"an action's arguments and variables are at most {MAX_REQUEST} bytes in all: send the rest as a file")
    pieces = [fields[at : at + MAX_PAYLOAD] for at in range(0, len(fields), MAX_PAYLOAD)]
    frames = [frame(type, id, epoch, piece, flags | FLAG_MORE) for piece in pieces[:-1]]
    return b"".join((*frames, frame(type, id, epoch, pieces[-1], flags)))


def data_frames(id: int, epoch: int, data: memoryview) -> Iterator[bytes]:
    """Stdin's bytes; the caller has the credit for them."""
    for at in range(0, len(data), MAX_PAYLOAD):
        yield frame(DATA, id, epoch, bytes(data[at : at + MAX_PAYLOAD]))


def credit(id: int, epoch: int, stream: int, count: int) -> bytes:
    return frame(CREDIT, id, epoch, _U32.pack(count), stream)


def resize(id: int, epoch: int, rows: int, columns: int) -> bytes:
    return frame(RESIZE, id, epoch, _SIZE.pack(rows, columns))


def signal(id: int, epoch: int, sent: int) -> bytes:
    return frame(SIGNAL, id, epoch, _U32.pack(sent))


def renew(id: int, epoch: int, time_ns: int, machine_id: bytes, seed: bytes) -> bytes:
    """A machine that was copied is another one from now on; answered as a kill is."""
    return frame(RENEW, id, epoch, _RENEWAL.pack(time_ns, machine_id, seed))


def hello(epoch: int, env: Iterable[tuple[str, str]], cwd: str | None, user: str | None, *, root: bool = False) -> bytes:
    """What actions have unless they say otherwise. `root`: the life begins in a root that the guest is given."""
    fields = [number(TAG_VERSION, VERSION), *(variable(name, value) for name, value in env)]
    if cwd is not None:
        fields.append(field(TAG_CWD, text(cwd)))
    if user is not None:
        fields.append(field(TAG_USER, text(user)))
    return request(HELLO, 0, epoch, b"".join(fields), FLAG_ROOT if root else 0)


def variable(name: str, value: str) -> bytes:
    if not name or "=" in name:
        raise SpecError(f"{name!r} cannot be a variable's name: it is empty or holds an =")
    return field(TAG_ENV, text(f"{name}={value}"))


# ---- from the guest


def header(buffer: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """The header at `at`, of which all 16 bytes are there; refused if no guest sends such a frame."""
    length, action, epoch, kind, flags, zero = _HEADER.unpack_from(buffer, at)
    least, most = _PAYLOAD_BYTES.get(kind, (1, 0))
    if zero or not least <= length <= most:
        raise ProtocolError(f"a frame of type {kind} with {length} bytes and the last field {zero}")
    if flags not in ((STDOUT, STDERR) if kind == OUTPUT else (0,)):
        raise ProtocolError(f"a frame of type {kind} with the flags {flags}")
    if (action == 0) != (kind == HELLO):
        raise ProtocolError(f"a frame of type {kind} for action {action}")
    return Header(length, action, epoch, kind, flags)


def fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and values, in order."""
    at = 0
    while at < len(payload):
        if len(payload) - at < FIELD_BYTES:
            raise ProtocolError("a field that is cut short")
        tag, zero, length = _FIELD.unpack_from(payload, at)
        at += FIELD_BYTES
        if zero or length > len(payload) - at:
            raise ProtocolError(f"a field of {length} bytes where {len(payload) - at} are left")
        yield tag, payload[at : at + length]
        at += length


def greeting(payload: bytes) -> int:
    """The abilities a guest's HELLO tells of."""
    version, abilities = 0, 0
    for tag, value in fields(payload):
        if tag == TAG_VERSION:
            version = _integer(value)
        elif tag == TAG_ABILITIES:
            abilities = _integer(value)
    if version != VERSION:
        raise ProtocolError(f"version {version} of the wire, where version {VERSION} is spoken")
    return abilities


def _integer(value: bytes) -> int:
    if len(value) != 8:
        raise ProtocolError(f"a number of {len(value)} bytes")
    return int.from_bytes(value, "little")


class Refusal(NamedTuple):
    """Why nothing was started."""

    reason: str = "the guest gave no reason"
    errno: int = 0
    """Not 0: the machine could not, and no limit of the sandbox's was why."""


def refusal(payload: bytes) -> Refusal:
    said = Refusal()
    for tag, value in fields(payload):
        if tag == TAG_MESSAGE:
            said = said._replace(reason=value.decode("utf-8", "replace"))
        elif tag == TAG_ERRNO:
            said = said._replace(errno=_integer(value))
    return said


def granted(payload: bytes) -> int:
    return _U32.unpack(payload)[0]


def ended(payload: bytes) -> Ended:
    end, flags, zero, code, sent, error, guest_ns, cpu_ns, rss = _ENDED.unpack(payload)
    known = ENDED_STILL_RUNNING | ENDED_SESSION_REPLACED | ENDED_HAS_CODE | ENDED_HAS_USAGE
    if zero or end > END_KILLED or flags & ~known or not (0 <= error < 4096 and 0 <= sent <= 64):
        raise ProtocolError(f"an end of kind {end} with the flags {flags}")
    usage = bool(flags & ENDED_HAS_USAGE)
    return Ended(
        _ENDS[end] if end < END_SKIPPED else End.SIGNALED if end == END_KILLED else None,
        end == END_KILLED,
        bool(flags & ENDED_STILL_RUNNING),
        bool(flags & ENDED_SESSION_REPLACED),
        code if flags & ENDED_HAS_CODE else None,
        sent,
        error,
        guest_ns,
        cpu_ns if usage else None,
        rss or None if usage else None,
    )


def entries(data: bytes) -> tuple[FileInfo, ...]:
    """What LIST and STAT answered, sorted by name."""
    found: list[FileInfo] = []
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size:
            raise ProtocolError("a directory entry that is cut short")
        name_bytes, target_bytes, kind, zero, mode, uid, gid, size_bytes, mtime_ns = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if zero != b"\0\0\0" or kind not in _KINDS or name_bytes + target_bytes > len(data) - at:
            raise ProtocolError(f"a directory entry of kind {kind} with a name of {name_bytes} bytes")
        name, target = data[at : at + name_bytes], data[at + name_bytes : at + name_bytes + target_bytes]
        at += name_bytes + target_bytes
        found.append(
            FileInfo(
                name=_name(name),
                kind=_KINDS[kind],
                size_bytes=size_bytes,
                mode=mode,
                mtime_ns=mtime_ns,
                uid=uid,
                gid=gid,
                target=_name(target) if kind == 3 else None,
            )
        )
    return tuple(sorted(found, key=lambda entry: entry.name))


def _name(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
