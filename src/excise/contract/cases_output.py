"""Output: all of it, as it was, in order, in bounded memory."""

import hashlib
import os

from excise.action import KEEP_ALL, Keep
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded
from excise.contract.watch import sh

MEBIBYTE = 1 << 20
MIDDLE_BYTES = 200_000


@case(
    promise="Output comes back byte for byte, on both streams.",
    why="Decoding on the way replaces what is no UTF-8, and terminals turn newlines into carriage returns.",
)
async def binary_output(bench: Bench) -> None:
    box = await bench.sandbox()
    every = bytes(range(256)) * 16
    await box.write("bytes", every)
    seen = await box.run(scripts.BOTH_STREAMS_FROM_FILE)
    succeeded(seen, "`cat`")
    expect(seen.stdout == every, "stdout is not what was written")
    expect(seen.stderr == every, "stderr is not what was written")


@case(
    promise="Text beyond ASCII passes both ways unharmed, whatever the locale.",
    why="An unset locale makes half the tools fall back to ASCII, and the other half crash.",
)
async def unicode_output(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.UNICODE)
    equal(seen.stdout.decode(), "grüße ☃ 🙂\n", "stdout")
    equal(seen.stderr.decode(), "fehler ß\n", "stderr")
    expect("☃" in seen.text and "ß" in seen.text, "Observation.text lost characters")
    seen = await box.run(sh(scripts.PRINT_ARGUMENTS, "☃"))
    equal(seen.stdout.decode(), "<☃>\n", "an argument beyond ASCII")


@case(
    promise="64 MiB of output come back complete when all is to be kept.",
    why="Wires with frames, line readers and hard-coded buffers lose, limit or crawl on what a build can print.",
)
async def large_output(bench: Bench) -> None:
    box = await bench.sandbox()
    block = os.urandom(MEBIBYTE)
    await box.write("block", block)
    seen = await box.run(scripts.CAT_BLOCK_64_TIMES, keep=KEEP_ALL)
    succeeded(seen, "`cat`")
    equal((len(seen.stdout), seen.dropped_bytes), (64 * MEBIBYTE, 0), "number of bytes kept and dropped")
    wanted = hashlib.sha256(block * 64).hexdigest()
    equal(hashlib.sha256(seen.stdout).hexdigest(), wanted, "the output's digest")


@case(
    promise="merge=True is one pipe: both streams in the order they were written.",
    why="Joining two pipes afterwards puts the traceback before the line that caused it.",
)
async def merge_is_true_order(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.INTERLEAVED, merge=True)
    equal(seen.stdout.decode().split(), [f"{s}{n}" for n in range(50) for s in ("out", "err")], "the merged stream")
    equal(seen.stderr, b"", "stderr of a merged action")
    seen = await box.run(scripts.INTERLEAVED)
    equal(seen.stderr.decode().split(), [f"err{n}" for n in range(50)], "stderr of an action that is not merged")


@case(
    promise="Truncation keeps each stream's head and tail, and counts what it dropped.",
    why="The error is at the end and the command line at the start; cutting either silently misleads the policy.",
)
async def keep_head_and_tail(bench: Bench) -> None:
    box = await bench.sandbox()
    both = await box.run(scripts.LONG_MIDDLE, keep=Keep(10, 10))
    equal(both.stdout, b"01234567899876543210", "stdout's head and tail")
    equal(both.stderr, b"abcdefghijqrstuvwxyz", "stderr's head and tail")
    equal(both.dropped_bytes, MIDDLE_BYTES + 6, "the number of dropped bytes")
    head = await box.run(scripts.LONG_MIDDLE, keep=Keep(10, 0))
    equal((head.stdout, head.dropped_bytes), (b"0123456789", MIDDLE_BYTES + 10 + 16), "the head alone")
    tail = await box.run(scripts.LONG_MIDDLE, keep=Keep(0, 10))
    equal((tail.stdout, tail.dropped_bytes), (b"9876543210", MIDDLE_BYTES + 10 + 16), "the tail alone")
    whole = await box.run(scripts.LONG_MIDDLE)
    wanted = b"0123456789" + bytes(MIDDLE_BYTES) + b"9876543210"
    expect(whole.stdout == wanted and whole.dropped_bytes == 0, "an output under the bounds was cut")
