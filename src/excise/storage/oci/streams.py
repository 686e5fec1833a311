"""A layer's bytes: read from where it lies, checked, decompressed, one chunk at a time, beside whoever unpacks them."""

import bz2
import hashlib
import itertools
import lzma
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError

CHUNK_BYTES = 1 << 20
_AHEAD_CHUNKS = 8
_ZSTD_WINDOW_BYTES = 1 << 27
_MOST_MEMORY_BYTES = 1 << 29
_PLENTY_BYTES = 1 << 30
_MOST_RATIO = 200
"""Real layers shrink by 2 to 20, a gigabyte of zeros by 1,000."""


class Limits(msgspec.Struct, frozen=True):
    """What a layer may unpack to."""

    most_bytes: int = 64 << 30
    most_entries: int = 8_000_000


class FileSource(msgspec.Struct, frozen=True, tag="file"):
    """Bytes of a file: all of it, or `size` from `offset` on, as of a layer in an archive."""

    path: str
    offset: int = 0
    size: int | None = None

    def chunks(self) -> Iterator[bytes]:
        left = self.size
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            while left is None or left > 0:
                chunk = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                if not chunk:
                    if left:
                        raise SpecError(f"{self.path} is cut short: copy it again")
                    return
                left = None if left is None else left - len(chunk)
                yield chunk


class Stream:
    """Decompressed chunks of a layer, read by a thread of its own; digests of both sides once it has ended."""

    def __init__(self, chunks: Iterator[bytes], limits: Limits, progress: Callable[[int], None] = lambda _: None) -> None:
        self._source = chunks
        self._limits = limits
        self._progress = progress
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD_CHUNKS)
        self._given_up = threading.Event()
        self._reading = False
        self._raw, self._plain = hashlib.sha256(), hashlib.sha256()
        self._raw_bytes = self.plain_bytes = 0
        self._thread = threading.Thread(target=self._read, name="excise-stream", daemon=True)

    @property
    def digest(self) -> str:
        """Of the bytes as they came."""
        return f"sha256:{self._raw.hexdigest()}"

    @property
    def diff_id(self) -> str:
        """Of the tar itself."""
        return f"sha256:{self._plain.hexdigest()}"

    def __iter__(self) -> Iterator[bytes]:
        self._thread.start()
        self._reading = True
        while (item := self._next()) is not None:
            yield item

    def _next(self) -> bytes | None:
        item = self._queue.get()
        self._reading = isinstance(item, bytes)
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Give up: the thread ends at its next chunk."""
        self._given_up.set()
        while self._reading:
            with suppress(Exception):  # what it failed with is of no interest any more
                self._next()
        if self._thread.ident is not None:
            self._thread.join()

    def _read(self) -> None:
        try:
            for chunk in self._decompressed():
                self._queue.put(chunk)
                if self._given_up.is_set():
                    break
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by who reads
            self._queue.put(error)

    def _decompressed(self) -> Iterator[bytes]:
        for plain in inflated(self._counted()):
            self._plain.update(plain)
            self.plain_bytes += len(plain)
            self._check_size()
            yield plain

    def _counted(self) -> Iterator[bytes]:
        for chunk in self._source:
            self._raw.update(chunk)
            self._raw_bytes += len(chunk)
            self._progress(len(chunk))
            yield chunk

    def _check_size(self) -> None:
        if self.plain_bytes > self._limits.most_bytes:
            raise SpecError(f"it unpacks to more than {self._limits.most_bytes >> 30} GiB, the most a layer may have")
        if self.plain_bytes > _PLENTY_BYTES and self.plain_bytes > self._raw_bytes * _MOST_RATIO:
            raise SpecError(f"it unpacks to more than {_MOST_RATIO} times its size: no honest layer does")


def inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, decompressed if they begin as what we know does; never much more than a chunk at a time."""
    first = next(chunks, b"")
    every = itertools.chain((first,), chunks)
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(every)
    if first.startswith(b"\x1f\x8b"):
        return _framed(every, _Gunzip, "gzip")
    if first.startswith(b"BZh"):
        return _framed(every, bz2.BZ2Decompressor, "bzip2")
    if first.startswith(b"\xfd7zXZ\0"):
        return _framed(every, lambda: lzma.LZMADecompressor(memlimit=_MOST_MEMORY_BYTES), "xz")
    return (chunk for chunk in every if chunk)


class _Gunzip:
    """zlib's decompressor with the face of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._full

    def decompress(self, data: bytes, most: int) -> bytes:
        plain = self._inner.decompress(self._inner.unconsumed_tail + data, most)
        self._full = len(plain) == most  # there may be more, even if all the input is taken
        return plain


def _framed(chunks: Iterator[bytes], fresh: Callable[[], Any], named: str) -> Iterator[bytes]:
    """Compressed streams one after another; zeros behind the last are padding."""
    inner = fresh()
    for chunk in chunks:
        left = chunk
        while left or not (inner.eof or inner.needs_input):
            if inner.eof:
                if not left.strip(b"\0"):
                    break
                inner = fresh()
            if plain := inner.decompress(left, CHUNK_BYTES):
                yield plain
            left = inner.unused_data if inner.eof else b""
    if not inner.eof:
        raise SpecError(f"it is cut short: its {named} stream has no end")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError  # noqa: PLC0415 - only layers that are compressed so need it

    decompressor = ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    source: Any = _Readable(chunks)  # all it needs of a file is `read`
    reader = decompressor.stream_reader(source, read_across_frames=True)
    try:
        while plain := reader.read(CHUNK_BYTES):
            yield plain
    except ZstdError as error:
        raise SpecError(f"its zstd stream is damaged: {error}") from None


class _Readable:
    """Chunks as a file that can be read; each answer is at most as long as asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def read(self, most: int) -> bytes:
        chunk = self._left or next(self._chunks, b"")
        self._left = chunk[most:]
        return chunk[:most]
