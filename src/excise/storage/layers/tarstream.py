"""A tar read from a stream, once and forwards: ustar, pax and GNU's long names and sparse files.

The standard library's reader takes ten times as long for a layer of small files. This one reads what image builders write and
refuses the rest by name; it never touches a file.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from excise.storage.layers.tarfields import (
    BLOCK,
    MOST_EXTENSION_BYTES,
    Extent,
    Header,
    TarError,
    decimal,
    extents_of,
    number,
    time_ns,
)

_ZEROS = bytes(BLOCK)
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


class _Extensions:
    """What the headers before a member's own say of it."""

    def __init__(self) -> None:
        self.pax: dict[bytes, bytes] = {}
        self.sparse: list[Extent] = []
        self.any = False

    def take(self, reader: Reader, kind: bytes, size: int) -> bool:
        """Read the extension that this header announces, if it does."""
        if kind not in (b"L", b"K", b"x", b"g"):
            return False
        data = _extension(reader, size)
        if kind == b"x":
            self.sparse = _read_pax(data, self.pax)
        elif kind in (b"L", b"K"):
            self.pax.setdefault(b"path" if kind == b"L" else b"linkpath", data.rstrip(b"\0"))
        # "g" is for the whole archive: a comment, of git's say. Docker does not apply it either.
        self.any = self.any or kind != b"g"
        return True


def _next_header(reader: Reader) -> tuple[Member, int] | None:
    """The next member and how many bytes of it follow, with what the extension headers before it say."""
    said = _Extensions()
    while True:
        block = reader.exactly(BLOCK)
        if block == _ZEROS and not said.any:
            return None
        if block == _ZEROS or len(block) < BLOCK:
            raise TarError("it is cut short")
        fields = _FIELDS.unpack(block)
        _check_sum(block, fields[6])
        if not said.take(reader, fields[7], number(fields[4])):
            return _member(reader, fields, Header(block, said.pax, said.sparse))


def _member(reader: Reader, fields: tuple[bytes, ...], header: Header) -> tuple[Member, int]:
    pax = header.pax
    name = _name(fields, pax)
    kind = _KINDS.get(fields[7])
    if kind is None:
        raise TarError(f"member {name[:200]!r} is of type {fields[7]!r}, which is unknown")
    if fields[7] == b"\0" and name.endswith("/"):  # as tar wrote directories before there was a type for them
        kind = "directory"
    size = stored = 0
    extents = None
    if kind == "file":  # of others some tars say a size: a link's target's, say; their content is not there
        stored = decimal(pax[b"size"]) if b"size" in pax else number(fields[4])
        if stored < 0:
            raise TarError(f"member {name[:200]!r} has fewer than no bytes")
        extents, size, stored = extents_of(reader, header, stored)
    member = Member(
        name=name,
        kind=kind,
        mode=number(fields[1]) & 0o7777,
        uid=decimal(pax[b"uid"]) if b"uid" in pax else number(fields[2]),
        gid=decimal(pax[b"gid"]) if b"gid" in pax else number(fields[3]),
        mtime_ns=time_ns(pax[b"mtime"]) if b"mtime" in pax else number(fields[5]) * 1_000_000_000,
        size=size,
        link=_text(pax[b"linkpath"] if b"linkpath" in pax else fields[8].split(b"\0", 1)[0]),
        xattrs={_text(key[len(_XATTR) :]): value for key, value in pax.items() if key.startswith(_XATTR)} if pax else {},
        extents=extents,
    )
    return member, stored


def _name(fields: tuple[bytes, ...], pax: dict[bytes, bytes]) -> str:
    for key in (b"GNU.sparse.name", b"path"):
        if key in pax:
            return _text(pax[key])
    name = fields[0].split(b"\0", 1)[0]
    prefix = fields[15].split(b"\0", 1)[0]
    if prefix and fields[9] == b"ustar\0":  # GNU's own format has other things there
        name = prefix + b"/" + name
    return _text(name)


def _check_sum(block: bytes, said: bytes) -> None:
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != number(said):
        raise TarError("it is damaged, or no tar")


def _extension(reader: Reader, size: int) -> bytes:
    if not 0 <= size <= MOST_EXTENSION_BYTES:
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
            offset = decimal(value)
        elif key == b"GNU.sparse.numbytes":
            extents.append((offset, decimal(value)))
        into[key] = value
        at += int(length)
    return extents


def _text(raw: bytes) -> str:
    if b"\0" in raw:
        raise TarError("a name in it has a zero byte")
    return raw.decode("utf-8", "surrogateescape")
