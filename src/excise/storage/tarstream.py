"""A tar read from a stream, once and forwards: ustar, pax and GNU's long names and sparse files.

The standard library's reader takes ten times as long for a layer of small files. This one reads what image builders write and
refuses the rest by name; it never touches a file.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MOST_EXTENSION_BYTES = 4 << 20
"""Of a long name or a pax header; an attribute has at most 64 KiB, and a file some of them."""
_MOST_EXTENTS = 1 << 16
_FIELDS = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"S": "file",
    b"1": "hard link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "fifo",
}
_XATTR = b"SCHILY.xattr."

Extent = tuple[int, int]


class TarError(ValueError):
    """The stream is not a tar we read; the message is the reason."""


class Member(NamedTuple):
    """What a header says."""

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    """Bytes of content in the file as it will be."""
    link: str
    xattrs: dict[str, bytes]
    extents: tuple[Extent, ...] | None
    """(offset, length) of what of a sparse file is in the stream; None: it is all there."""


class Reader:
    """Bytes of a stream of chunks, as many as asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")
        self._at = 0

    def some(self, most: int) -> memoryview:
        """At least one byte and at most `most`; nothing only at the end."""
        while self._at == len(self._chunk):
            following = next(self._chunks, None)
            if following is None:
                return memoryview(b"")
            self._chunk, self._at = memoryview(following), 0
        piece = self._chunk[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def exactly(self, count: int) -> bytes:
        """`count` bytes, or nothing where the stream ends here."""
        piece = self.some(count)
        if len(piece) in (count, 0):
            return bytes(piece)
        parts = [piece]
        missing = count - len(piece)
        while missing:
            piece = self.some(missing)
            if not piece:
                raise TarError("it is cut short")
            parts.append(piece)
            missing -= len(piece)
        return b"".join(parts)

    def pieces(self, count: int) -> Iterator[memoryview]:
        while count:
            piece = self.some(count)
            if not piece:
                raise TarError("it is cut short")
            count -= len(piece)
            yield piece

    def skip(self, count: int) -> None:
        for _ in self.pieces(count):
            pass

    def drain(self) -> None:
        """To the end of the stream: what comes after a tar is in its digest too."""
        while self.some(1 << 20):
            pass


def members(reader: Reader, most_bytes: int) -> Iterator[tuple[Member, Callable[[], Iterator[memoryview]]]]:
    """Each member, and what gives its content's pieces; what of it was not taken is skipped."""
    while (header := _next_header(reader)) is not None:
        member, stored = header
        if member.size > most_bytes or stored > most_bytes:
            raise TarError(f"member {member.name[:200]!r} says it has {member.size} bytes, more than a layer may have")
        taken = False

        def content(stored: int = stored) -> Iterator[memoryview]:
            nonlocal taken
            taken = True
            return reader.pieces(stored)

        yield member, content
        reader.skip((0 if taken else stored) + -stored % BLOCK)


def _next_header(reader: Reader) -> tuple[Member, int] | None:
    """The next member and how many bytes of it follow, with what the extension headers before it say."""
    pax: dict[bytes, bytes] = {}
    sparse: list[Extent] = []
    long_name = long_link = None
    while True:
        block = reader.exactly(BLOCK)
        if block == _ZEROS:
            if pax or long_name is not None or long_link is not None:
                raise TarError("it ends after an extension header")
            return None
        if len(block) < BLOCK:
            raise TarError("it is cut short")
        fields = _FIELDS.unpack(block)
        _check_sum(block, fields[6])
        kind, size = fields[7], _number(fields[4])
        if kind == b"L":
            long_name = _extension(reader, size).rstrip(b"\0")
        elif kind == b"K":
            long_link = _extension(reader, size).rstrip(b"\0")
        elif kind == b"x":
            sparse = _read_pax(_extension(reader, size), pax)
        elif kind == b"g":  # for the whole archive: a comment, of git's say; Docker does not apply it either
            _extension(reader, size)
        else:
            return _member(reader, block, fields, pax, sparse, long_name, long_link)


def _member(
    reader: Reader,
    block: bytes,
    fields: tuple[bytes, ...],
    pax: dict[bytes, bytes],
    sparse: list[Extent],
    long_name: bytes | None,
    long_link: bytes | None,
) -> tuple[Member, int]:
    kind = _KINDS.get(fields[7])
    raw_name = pax.get(b"path", long_name)
    if raw_name is None:
        raw_name = fields[0].split(b"\0", 1)[0]
        prefix = fields[15].split(b"\0", 1)[0]
        if prefix and fields[9] == b"ustar\0":  # GNU's own format has other things there
            raw_name = prefix + b"/" + raw_name
    raw_name = pax.get(b"GNU.sparse.name", raw_name)
    name = _text(raw_name)
    if kind is None:
        raise TarError(f"member {name[:200]!r} is of type {fields[7]!r}, which is unknown")
    raw_link = pax.get(b"linkpath", long_link)
    link = _text(raw_link if raw_link is not None else fields[8].split(b"\0", 1)[0])
    stored = _decimal(pax[b"size"]) if b"size" in pax else _number(fields[4])
    if stored < 0:
        raise TarError(f"member {name[:200]!r} has fewer than no bytes")
    if kind == "file" and name.endswith("/"):  # as tar wrote directories before there was a type for them
        kind = "directory"
    extents, size, stored = _extents(reader, block, fields, pax, sparse, stored)
    if kind != "file":
        size = 0
        # A hard link of old tars says the size of what it leads to; its content is not there.
        stored = stored if kind not in ("hard link", "link", "directory", "device", "fifo") else 0
    return (
        Member(
            name=name,
            kind=kind,
            mode=_number(fields[1]) & 0o7777,
            uid=_decimal(pax[b"uid"]) if b"uid" in pax else _number(fields[2]),
            gid=_decimal(pax[b"gid"]) if b"gid" in pax else _number(fields[3]),
            mtime_ns=_time_ns(pax[b"mtime"]) if b"mtime" in pax else _number(fields[5]) * 1_000_000_000,
            size=size,
            link=link,
            xattrs={_text(key[len(_XATTR) :]): value for key, value in pax.items() if key.startswith(_XATTR)},
            extents=extents,
        ),
        stored,
    )


def _check_sum(block: bytes, said: bytes) -> None:
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != _number(said):
        raise TarError("it is damaged, or no tar")


def _extension(reader: Reader, size: int) -> bytes:
    if not 0 <= size <= _MOST_EXTENSION_BYTES:
        raise TarError(f"a name or attribute in it has {size} bytes")
    data = reader.exactly(size) if size else b""
    if len(data) < size:
        raise TarError("it is cut short")
    reader.skip(-size % BLOCK)
    return data


def _read_pax(data: bytes, into: dict[bytes, bytes]) -> list[Extent]:
    """Put the records into `into`; GNU's first way to say a sparse file's extents repeats two keys, and is returned."""
    extents: list[Extent] = []
    at, offset = 0, 0
    while at < len(data):
        length, space, _ = data[at : at + 20].partition(b" ")
        if not space or not length.isdigit() or at + int(length) > len(data) or int(length) < len(length) + 3:
            raise TarError("a pax header in it is damaged")
        key, equals, value = data[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        if not equals or data[at + int(length) - 1 : at + int(length)] != b"\n":
            raise TarError("a pax header in it is damaged")
        if key == b"GNU.sparse.offset":
            offset = _decimal(value)
        elif key == b"GNU.sparse.numbytes":
            extents.append((offset, _decimal(value)))
        into[key] = value
        at += int(length)
    return extents


def _extents(
    reader: Reader, block: bytes, fields: tuple[bytes, ...], pax: dict[bytes, bytes], sparse: list[Extent], stored: int
) -> tuple[tuple[Extent, ...] | None, int, int]:
    """A sparse file's extents, its size, and how many bytes still follow in the stream."""
    extents: list[Extent]
    if fields[7] == b"S":
        extents = _old_extents(reader, block)
        size = _number(block[483:495])
    elif pax.get(b"GNU.sparse.major") == b"1":
        extents, used = _leading_extents(reader)
        size, stored = _decimal(pax.get(b"GNU.sparse.realsize", b"0")), stored - used
    elif b"GNU.sparse.map" in pax:
        numbers = [_decimal(text) for text in pax[b"GNU.sparse.map"].split(b",")]
        extents = list(zip(numbers[::2], numbers[1::2], strict=True)) if len(numbers) % 2 == 0 else [(-1, -1)]
        size = _decimal(pax.get(b"GNU.sparse.size", b"0"))
    elif b"GNU.sparse.size" in pax:
        extents, size = sparse, _decimal(pax[b"GNU.sparse.size"])
    else:
        return None, stored, stored
    extents = [extent for extent in extents if extent[1] != 0]
    end = 0
    for offset, length in extents:
        if offset < end or length < 0 or offset + length > size:
            raise TarError("a sparse file's map in it is damaged")
        end = offset + length
    if len(extents) > _MOST_EXTENTS or sum(length for _, length in extents) != stored:
        raise TarError("a sparse file's map in it does not fit its content")
    return tuple(extents), size, stored


def _old_extents(reader: Reader, block: bytes) -> list[Extent]:
    extents = [_extent(block, at) for at in range(386, 482, 24)]
    more = block[482]
    while more:
        block = reader.exactly(BLOCK)
        if len(block) < BLOCK or len(extents) > _MOST_EXTENTS:
            raise TarError("a sparse file's map in it is damaged")
        extents += (_extent(block, at) for at in range(0, 504, 24))
        more = block[504]
    return extents


def _extent(block: bytes, at: int) -> Extent:
    return _number(block[at : at + 12]), _number(block[at + 12 : at + 24])


def _leading_extents(reader: Reader) -> tuple[list[Extent], int]:
    """GNU's latest way: decimal lines before the content, in whole blocks."""
    text = reader.exactly(BLOCK)
    while True:
        lines = text.split(b"\n")
        count = _decimal(lines[0]) if len(lines) > 1 else -1
        if 0 <= count and len(lines) > 1 + 2 * count:
            numbers = [_decimal(line) for line in lines[1 : 1 + 2 * count]]
            return list(zip(numbers[::2], numbers[1::2], strict=True)), len(text)
        block = reader.exactly(BLOCK)
        if len(block) < BLOCK or count > _MOST_EXTENTS or len(text) > _MOST_EXTENSION_BYTES:
            raise TarError("a sparse file's map in it is damaged")
        text += block


def _text(raw: bytes) -> str:
    if b"\0" in raw:
        raise TarError("a name in it has a zero byte")
    return raw.decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary where they would not fit."""
    if field[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise TarError("it is damaged, or no tar") from None


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise TarError("a number in it is none")
    return int(text)


def _time_ns(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    seconds = -_decimal(whole[1:]) if whole.startswith(b"-") else _decimal(whole)
    nanoseconds = _decimal(part[:9].ljust(9, b"0")) if part else 0
    return seconds * 1_000_000_000 + (-nanoseconds if whole.startswith(b"-") else nanoseconds)
