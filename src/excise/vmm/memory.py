"""A machine's memory, copied while it stands still: the file it began with, and over that the pages it has written since."""

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from excise.errors import SubstrateError
from excise.vmm.disk import copy_sparse

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ZEROS = bytes(_PAGE)
_ENTRY_BYTES = 8
_CHUNK_BYTES = 4 << 20
# The highest byte of an entry: 128 in memory, 64 swapped out, 32 still the file's own page.
_WRITTEN = bytes(49 if high & 0xC0 and not high & 0x20 else 48 for high in range(256))


def save(pid: int, base: int, target: Path) -> None:
    """Write to `target` what the process `pid` has in its private mapping of the file `base`, a descriptor: the name may
    be gone. The process must not change it meanwhile.
    """
    with target.open("wb") as file:
        copy_sparse(base, file.fileno())
    blank = os.fstat(base).st_blocks == 0
    found = False
    with target.open("r+b", buffering=0) as file, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for begin, end, offset in _mappings(pid, base):
            found = True
            for first, length in _written(pid, begin, end):
                for at in range(first, first + length, _CHUNK_BYTES):
                    size = min(_CHUNK_BYTES, first + length - at)
                    data = os.pread(memory.fileno(), size, at)
                    for piece in _pieces(data) if blank else ((0, data),):
                        os.pwrite(file.fileno(), piece[1], offset + at - begin + piece[0])
    if not found:
        raise SubstrateError(f"the memory of QEMU's process {pid} is not where it was put")


def erase(path: Path, values: Iterable[bytes]) -> int:
    """Overwrite with zeros whatever in the file has one of these values; how often that was."""
    found = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for value in values:
            at = memory.find(value)
            while at >= 0:
                memory[at : at + len(value)] = bytes(len(value))
                found += 1
                at = memory.find(value, at + len(value))
    return found


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """What is not zero of it: over a file that is all zeros the rest can stay a hole."""
    begin = None
    for at in range(0, len(data) + 1, _PAGE):
        empty = at == len(data) or data[at : at + _PAGE] == _ZEROS
        if begin is None and not empty:
            begin = at
        elif begin is not None and empty:
            yield begin, data[begin:at]
            begin = None


def _mappings(pid: int, base: int) -> Iterator[tuple[int, int, int]]:
    """Where the process has the file: begin, end, and the place in the file."""
    inode = str(os.fstat(base).st_ino)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[4] == inode and fields[1] == "rw-p":
            begin, _, end = fields[0].partition("-")
            yield int(begin, 16), int(end, 16), int(fields[2], 16)


def _written(pid: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Runs of pages that are the process's own: where each begins, and its length in bytes."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        entries = b""
        pagemap.seek(begin // _PAGE * _ENTRY_BYTES)
        wanted = (end - begin) // _PAGE * _ENTRY_BYTES
        while len(entries) < wanted:
            piece = pagemap.read(wanted - len(entries))
            if not piece:
                break
            entries += piece
    flags = entries[7::_ENTRY_BYTES].translate(_WRITTEN)
    for run in re.finditer(b"1+", flags):
        yield begin + run.start() * _PAGE, len(run[0]) * _PAGE
