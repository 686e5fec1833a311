"""What the fields of a tar's headers say: numbers, and the maps of sparse files in GNU's four ways of writing them."""

from typing import NamedTuple, Protocol

BLOCK = 512
MOST_EXTENSION_BYTES = 4 << 20
"""Of a long name, a pax header or a map; an attribute has at most 64 KiB, and a file some of them."""
_MOST_EXTENTS = 1 << 16

Extent = tuple[int, int]
"""(offset, length) of a part of a file."""


class TarError(ValueError):
    """The stream is not a tar we read; the message is the reason."""


class Header(NamedTuple):
    """A member's own block, and what the extension headers before it said."""

    block: bytes
    pax: dict[bytes, bytes]
    sparse: list[Extent]


class Blocks(Protocol):
    """Where more blocks come from."""

    def exactly(self, count: int) -> bytes: ...


def extents_of(reader: Blocks, header: Header, stored: int) -> tuple[tuple[Extent, ...] | None, int, int]:
    """A sparse file's extents, None for any other; its size; and how many bytes of it still follow in the stream."""
    block, pax, sparse = header
    extents: list[Extent]
    if block[156:157] == b"S":
        extents = _old_extents(reader, block)
        size = number(block[483:495])
    elif pax.get(b"GNU.sparse.major") == b"1":
        extents, used = _leading_extents(reader)
        size, stored = decimal(pax.get(b"GNU.sparse.realsize", b"0")), stored - used
    elif b"GNU.sparse.map" in pax:
        numbers = [decimal(text) for text in pax[b"GNU.sparse.map"].split(b",")]
        extents = _pairs(numbers)
        size = decimal(pax.get(b"GNU.sparse.size", b"0"))
    elif b"GNU.sparse.size" in pax:
        extents, size = sparse, decimal(pax[b"GNU.sparse.size"])
    else:
        return None, stored, stored
    return _checked(extents, size, stored), size, stored


def _checked(extents: list[Extent], size: int, stored: int) -> tuple[Extent, ...]:
    kept = tuple(extent for extent in extents if extent[1] != 0)
    end = 0
    for offset, length in kept:
        if offset < end or length < 0 or offset + length > size:
            raise TarError("a sparse file's map in it is damaged")
        end = offset + length
    if len(kept) > _MOST_EXTENTS or sum(length for _, length in kept) != stored:
        raise TarError("a sparse file's map in it does not fit its content")
    return kept


def _pairs(numbers: list[int]) -> list[Extent]:
    if len(numbers) % 2:
        raise TarError("a sparse file's map in it is damaged")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _old_extents(reader: Blocks, block: bytes) -> list[Extent]:
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
    return number(block[at : at + 12]), number(block[at + 12 : at + 24])


def _leading_extents(reader: Blocks) -> tuple[list[Extent], int]:
    """GNU's latest way: decimal lines before the content, in whole blocks."""
    text = b""
    while True:
        block = reader.exactly(BLOCK)
        text += block
        lines = text.split(b"\n")
        count = decimal(lines[0]) if len(lines) > 1 else -1
        if len(block) < BLOCK or count > _MOST_EXTENTS or len(text) > MOST_EXTENSION_BYTES:
            raise TarError("a sparse file's map in it is damaged")
        if count >= 0 and len(lines) > 1 + 2 * count:
            return _pairs([decimal(line) for line in lines[1 : 1 + 2 * count]]), len(text)


def number(field: bytes) -> int:
    """Octal digits, or GNU's binary where they would not fit."""
    if field[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise TarError("it is damaged, or no tar") from None


def decimal(text: bytes) -> int:
    """A pax header's number; as Python reads more than digits, only those."""
    if not text.isdigit() or len(text) > 20:
        raise TarError("a number in it is none")
    return int(text)


def time_ns(text: bytes) -> int:
    """A pax header's time: seconds with a fraction, before 1970 too."""
    whole, _, part = text.partition(b".")
    seconds = decimal(whole.removeprefix(b"-"))
    nanoseconds = seconds * 1_000_000_000 + (decimal(part[:9].ljust(9, b"0")) if part else 0)
    return -nanoseconds if whole.startswith(b"-") else nanoseconds
