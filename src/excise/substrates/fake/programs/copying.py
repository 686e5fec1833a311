"""Programs that carry bytes from one place to another."""

import re

from excise.substrates.fake.pipes import PIECE_BYTES
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.voice import complain, encoded
from excise.substrates.fake.special import open_path

PIECE_S = 0.00002
"""What copying a full piece takes: an endless copy must not stop a virtual clock."""


async def cat(proc: Proc, argv: list[str]) -> int:
    status = 0
    for name in argv[1:] or ["-"]:
        try:
            stream = proc.files.get(0) if name == "-" else open_path(proc, name)
        except OSError as error:
            status = await complain(proc, "cat", f"{name}: {error.strerror}")
            continue
        while piece := await stream.read(PIECE_BYTES):
            await _write_piece(proc, piece)
    return status


async def _write_piece(proc: Proc, piece: bytes) -> None:
    await proc.write(1, piece)
    if len(piece) == PIECE_BYTES:
        await proc.compute(PIECE_S)


def _count(argv: list[str]) -> tuple[str, int, list[str]]:
    """Of head and tail: c or n, how many, and the files."""
    words = argv[1:]
    if words and words[0] in ("-c", "-n"):
        return words[0][1], int(words[1]), words[2:]
    if words and (found := re.fullmatch(r"-([cn]?)(\d+)", words[0])):
        return found[1] or "n", int(found[2]), words[1:]
    return "n", 10, words


async def head(proc: Proc, argv: list[str]) -> int:
    unit, left, names = _count(argv)
    stream = open_path(proc, names[0]) if names else proc.files.get(0)
    while left > 0 and (piece := await stream.read(min(left, PIECE_BYTES) if unit == "c" else PIECE_BYTES)):
        if unit == "n":
            lines = piece.splitlines(keepends=True)[:left]
            left -= len(lines)
            piece = b"".join(lines)
        else:
            left -= len(piece)
        try:
            await _write_piece(proc, piece)
        except OSError as error:
            return await complain(proc, "head", f"error writing 'standard output': {error.strerror}")
    return 0


async def tail(proc: Proc, argv: list[str]) -> int:
    unit, count, names = _count(argv)
    stream = open_path(proc, names[0]) if names else proc.files.get(0)
    held = bytearray()
    while piece := await stream.read(PIECE_BYTES):
        held += piece
        await proc.allocate(len(piece))
    kept = bytes(held[-count:]) if unit == "c" else b"".join(bytes(held).splitlines(keepends=True)[-count:])
    await proc.write(1, kept)
    return 0


async def tee(proc: Proc, argv: list[str]) -> int:
    copies = [open_path(proc, name, write=True, truncate=True) for name in argv[1:]]
    while piece := await proc.read(0):
        with proc.noting_full():
            for copy in copies:
                await copy.write(piece)
        await _write_piece(proc, piece)
    return 0


async def wc(proc: Proc, argv: list[str]) -> int:
    options = "".join(word[1:] for word in argv[1:] if word.startswith("-")) or "lwc"
    names = [word for word in argv[1:] if not word.startswith("-")]
    stream = open_path(proc, names[0]) if names else proc.files.get(0)
    lines = words = size = 0
    while piece := await stream.read(PIECE_BYTES):
        lines += piece.count(b"\n")
        words += len(piece.split())
        size += len(piece)
    counts = [str({"l": lines, "w": words, "c": size}[option]) for option in options]
    await proc.write(1, encoded(" ".join([*counts, *names[:1]]) + "\n"))
    return 0
