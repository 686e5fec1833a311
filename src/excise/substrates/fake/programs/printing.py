"""Programs that print what they are told."""

import re

from excise.substrates.fake.pipes import PIECE_BYTES
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.copying import PIECE_S
from excise.substrates.fake.programs.voice import encoded

_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "e": "\x1b",
}


async def true(proc: Proc, argv: list[str]) -> int:
    return 0


async def false(proc: Proc, argv: list[str]) -> int:
    return 1


async def echo(proc: Proc, argv: list[str]) -> int:
    words = argv[1:]
    end = "\n"
    if words[:1] == ["-n"]:
        words, end = words[1:], ""
    await proc.write(1, encoded(" ".join(words) + end))
    return 0


async def printf(proc: Proc, argv: list[str]) -> int:
    shape, words = argv[1], argv[2:]
    made = bytearray()
    while True:
        used = _formatted(shape, words, made)
        words = words[used:]
        if not used or not words:
            break
    await proc.write(1, bytes(made))
    return 0


def _formatted(shape: str, words: list[str], made: bytearray) -> int:
    """Add `shape` once, filled from `words`; how many of them it took."""
    used = 0
    for found in re.finditer(r"%([-0-9.]*)([sdixcb%])|\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)|([^%\\]+|.)", shape, re.DOTALL):
        if found[2] == "%":
            made += b"%"
        elif found[2]:
            word = words[used] if used < len(words) else ""
            used += 1
            value = f"%{found[1]}{found[2].replace('b', 's').replace('i', 'd')}" % (
                int(word or 0) if found[2] in "dix" else word[:1] if found[2] == "c" else word
            )
            made += encoded(value)
        elif found[3]:
            code = found[3]
            if code[0] in "01234567":
                made.append(int(code, 8) & 0xFF)
            elif code[0] == "x" and len(code) > 1:
                made.append(int(code[1:], 16))
            else:
                made += encoded(_ESCAPES.get(code, "\\" + code))
        else:
            made += encoded(found[4])
    return used


async def yes(proc: Proc, argv: list[str]) -> int:
    line = encoded(" ".join(argv[1:] or ["y"]) + "\n")
    piece = line * (PIECE_BYTES // len(line) + 1)
    while True:
        await proc.write(1, piece)
        await proc.compute(PIECE_S)


async def seq(proc: Proc, argv: list[str]) -> int:
    first, last = (1, int(argv[1])) if len(argv) == 2 else (int(argv[1]), int(argv[2]))
    await proc.write(1, b"".join(b"%d\n" % n for n in range(first, last + 1)))
    return 0
