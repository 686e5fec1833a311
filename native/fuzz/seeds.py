"""Writes the seeds from which the fuzzers start: python seeds.py, in this directory. They are small and kept in git."""

import io
import struct
import tarfile
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"
MEND = b"\1"  # native/fuzz/untar.c: checksums are put right


def _archive(form: int) -> bytes:
    buffer = io.BytesIO()
    kinds = {"d": tarfile.DIRTYPE, "d/link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE}
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name in ("d", "d/file", "hard", "d/link", "fifo", "d/link/through", "./odd//name/"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kinds.get(name, tarfile.REGTYPE), "d/file", 0o755
            info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
            data = b"" if name in kinds else b"content"
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if form != tarfile.USTAR_FORMAT:
            info = tarfile.TarInfo("long/" * 40 + "name")
            info.type, info.linkname, info.uid = tarfile.SYMTYPE, "../" * 50, 1 << 25
            tar.addfile(info)
    return MEND + buffer.getvalue().rstrip(b"\0") + bytes(1024)


def _escape() -> bytes:
    """A link out of the directory, and a file through it."""
    link, file = tarfile.TarInfo("up"), tarfile.TarInfo("up/canary")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    return MEND + link.tobuf() + file.tobuf() + bytes(1024)


def _long(form: int) -> bytes:
    """A name that is longer than any may be."""
    info = tarfile.TarInfo("x" * 5000)
    return MEND + info.tobuf(form) + bytes(1024)


def _frame(kind: int, payload: bytes, flags: int = 0, id: int = 1) -> bytes:
    return struct.pack("<IIIBBH", len(payload), id, 7, kind, flags, 0) + payload


def _field(tag: int, data: bytes) -> bytes:
    return struct.pack("<HHI", tag, 0, len(data)) + data


def _plan() -> bytes:
    """A request to the launcher with every tag (native/launch/request.h)."""
    texts = {64: b"/image/top", 65: b"/from\0/to\0\1", 66: b"name", 69: b"/sys/fs/cgroup/x", 70: b"pids.max\010", 74: b"/w"}
    numbers = {67: 1 << 20, 68: 1000, 71: 1, 72: 8080, 73: 1, 77: 5}
    fields = {tag: _field(tag, text) for tag, text in texts.items()}
    fields |= {tag: _field(tag, struct.pack("<Q", number)) for tag, number in numbers.items()}
    return b"".join(fields[tag] for tag in sorted(fields)) + _field(75, b"/dev/null")


def _seeds() -> dict[str, dict[str, bytes]]:
    run = _field(8, b"true") + _field(9, b"NAME=value") + _field(14, struct.pack("<Q", 10**9))
    hello = _frame(1, _field(1, struct.pack("<Q", 1)) + _field(10, b"/"), id=0)
    pieces = hello + _frame(16, run[:10], flags=128) + _frame(16, run[10:], flags=4) + _frame(18, b"stdin") + _frame(19, b"")
    passwd = b"nobody:staff\nroot:x:0:0:root:/root:/bin/sh\nnobody:x:65534:100::/:\nstaff:x:100:nobody,root\nlast:x:1:nobody"
    forms = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    return {
        "untar": {
            **{name: _archive(form) for name, form in forms.items()},
            "escape": _escape(),
            "long-gnu": _long(tarfile.GNU_FORMAT),
            "long-pax": _long(tarfile.PAX_FORMAT),
        },
        "fields": {"run": run},
        "link": {"whole": hello + _frame(16, run), "pieces": pieces, "kill": hello + _frame(22, b"") + _frame(20, bytes(8))},
        "plan": {"whole": _plan()},
        "status": {"told": b"\00123456789abcdef 0\0noise\0fedcba9876543210 7\0", "long": b"0123456789abcdef 1234\0" * 2},
        "users": {"name": passwd, "number": b"65534:100" + passwd[12:], "long": passwd + b"x" * 3000},
    }


if __name__ == "__main__":
    for target, seeds in _seeds().items():
        (SEEDS / target).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (SEEDS / target / name).write_bytes(data)
