"""A classic BPF program, run as the kernel would: enough of it for seccomp."""

import struct
from typing import NamedTuple

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD_WORD, _RETURN, _JUMP = 0x20, 0x06, 0x05
_JUMP_IF = {
    0x15: lambda a, k: a == k,
    0x25: lambda a, k: a > k,
    0x35: lambda a, k: a >= k,
    0x45: lambda a, k: a & k != 0,
}


class Instruction(NamedTuple):
    code: int
    yes: int
    no: int
    value: int


def parse(text: str) -> list[Instruction]:
    """As tests/native/confined.c prints it."""
    return [Instruction(*map(int, line.split())) for line in text.splitlines()]


def run(program: list[Instruction], architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the program answers to a system call. Every jump must lead forward and stay inside, as the kernel demands."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    at, accumulator = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == _LOAD_WORD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == _RETURN:
            return value
        elif code == _JUMP:
            at += value
        else:
            at += yes if _JUMP_IF[code](accumulator, value) else no
        assert at < len(program)
