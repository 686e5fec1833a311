"""Started processes: events as they come, flow control, stdin, signals, terminals."""

import os

from excise.action import KEEP_ALL, End, Exit, Pty
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect, succeeded, told
from excise.contract.watch import Reader, nap, silent, size_bytes
from excise.sandbox import Sandbox

MEBIBYTE = 1 << 20
CHUNK_BYTES = 1 << 16
LARGEST_BOUND_BYTES = 48 * MEBIBYTE
"""What a substrate may declare as its own: a bound that no memory could hold is none."""
QUIET_S = 0.3
FLOOD_S = 1000.0
STREAM = ("stream",)


@case(
    promise="A started process's output comes as it is written; its exit comes last and carries no output.",
    why="Output that arrives only at the end is no stream: a policy cannot answer a prompt it has not seen.",
    needs=STREAM,
)
async def stream_events(bench: Bench) -> None:
    box = await bench.sandbox()
    reader = Reader(await box.start(scripts.TWO_STREAMS_EXIT_4))
    seen = await reader.to_exit()
    equal((reader.stdout, reader.stderr), (b"one\n", b"two\n"), "what came as events")
    equal((seen.end, seen.exit_code, seen.stdout), (End.EXITED, 4, b""), "end, exit code and stdout of the exit")
    reader = Reader(await box.start(scripts.FIRST_WAIT_SECOND))
    await reader.until(b"first\n")  # comes although the process cannot end before it is told to
    succeeded(await box.run(scripts.MAKE_GO), "`touch`")
    await reader.to_exit()
    equal(reader.stdout, b"first\nsecond\n", "what came as events")


@case(
    promise="`wait` reads a started process to its end and keeps what its action says.",
    why="run is start and wait; where they differ, one of them is wrong.",
    needs=STREAM,
)
async def stream_wait(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.TWO_STREAMS_EXIT_4)
    seen = await process.wait()
    equal((seen.end, seen.exit_code, seen.stdout, seen.stderr), (End.EXITED, 4, b"one\n", b"two\n"), "the Observation")


@case(
    promise="Bytes written to a started process reach it while it runs, and closing its stdin is its end of file.",
    why="Debuggers, REPLs and installers want answers; a stdin that is buffered to the end deadlocks with them.",
    needs=STREAM,
)
async def process_write_stdin(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.COPY_STDIN)
    reader = Reader(process)
    await process.write(b"ping\n")
    await reader.until(b"ping\n")
    await process.write(b"\x00\xff again\n")
    await process.close_stdin()
    seen = await reader.to_exit()
    equal((seen.exit_code, reader.stdout), (0, b"ping\n\x00\xff again\n"), "exit code and output of `cat`")


@case(
    promise="A signal sent to a started process reaches it.",
    why="Ctrl-C is how a policy stops a server politely; killing it instead loses what it would have written.",
    needs=STREAM,
)
async def process_signal(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.ARM_TRAP)
    reader = Reader(process)
    await reader.until(b"armed\n")
    await process.signal(15)
    seen = await reader.to_exit()
    equal((seen.end, seen.exit_code, reader.stdout), (End.EXITED, 7, b"armed\ncaught\n"), "how the process ended")


@case(
    promise="`kill` ends every process a started action made, however it detached, before it returns.",
    why="What is left of a killed server holds its port, and the next start fails.",
    needs=STREAM,
)
async def process_kill(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.BEAT_DETACHED)
    succeeded(await box.run(scripts.WAIT_FOR_BEAT), "waiting for the action to begin")
    await process.kill()
    await silent(box, "a process of the killed action")
    seen = await process.wait()
    expect(not seen.ok, f"a killed process is told as {told(seen)}")
    await process.kill()  # of what is dead already: nothing to do


@case(
    promise="A consumer that does not read stalls its own producer and nobody else.",
    why="One connection for all, without credit per stream, lets one forgotten `tail -f` stop the whole sandbox.",
    needs=STREAM,
)
async def stalled_reader_stalls_only_itself(bench: Bench) -> None:
    box = await bench.sandbox()
    block = os.urandom(MEBIBYTE)
    await box.write("block", block)
    flood = await box.start(scripts.FLOOD, timeout_s=FLOOD_S)  # its own timeout must not be what ends a stall
    bench.at_end(flood.kill)
    succeeded(await box.run(scripts.WAIT_FOR_PROGRESS), "an action beside a stalled one")
    await _settled(bench, box)
    seen = await box.run(scripts.LEAVE_SLEEPER_HOLDING_PIPE, keep=KEEP_ALL)
    expect(seen.stdout == block, "an action beside a stalled one lost output")
    expect(await box.read("block") == block, "a file action beside a stalled one lost bytes")
    reader = Reader(await box.start(scripts.TWO_STREAMS_EXIT_4))
    await reader.to_exit()
    equal(reader.stdout, b"one\n", "the output of a process started beside a stalled one")


@case(
    promise="What nobody reads is held in bounded memory: the producer itself stops, and goes on when it is read.",
    why="Buffering without end turns `yes` into the death of the trainer; dropping turns it into wrong output.",
    needs=STREAM,
)
async def stalled_reader_is_bounded(bench: Bench) -> None:
    box = await bench.sandbox()
    flood = await box.start(scripts.FLOOD, timeout_s=FLOOD_S)  # its own timeout must not be what ends a stall
    bench.at_end(flood.kill)
    succeeded(await box.run(scripts.WAIT_FOR_PROGRESS), "waiting for the producer")
    written = await _settled(bench, box)
    reader, read = Reader(flood), 0
    while read < written + MEBIBYTE:
        event = await reader.next()
        expect(not isinstance(event, Exit), "the producer ended when it was read again")
        expect(reader.stdout.count(0) == len(reader.stdout), "bytes came that were never written")
        read, reader.stdout = read + len(reader.stdout), b""


async def _settled(bench: Bench, box: Sandbox) -> int:
    """How much the flood has written once it stands still; broken if it does not within the bound."""
    bound = bench.capabilities.unread_bytes
    expect(bound <= LARGEST_BOUND_BYTES, f"a bound of {bound} bytes is declared, which is none")
    before, still = -1, 0
    while still < 3:
        written = await size_bytes(box, "progress") // 2 * CHUNK_BYTES
        expect(written <= bound, f"the producer went on to {written} bytes though nobody read any")
        still = still + 1 if written == before else 0
        before = written
        await nap(box)
    return before


@case(
    promise="pty= gives an action a terminal of the size asked for; without it there is none.",
    why="Programs page, colour and prompt by what isatty says; the wrong answer hangs them or litters the output.",
    needs=("pty",),
)
async def pty_is_a_terminal(bench: Bench) -> None:
    box = await bench.sandbox()
    seen = await box.run(scripts.TERMINAL_SIZE, pty=Pty(rows=30, columns=100))
    succeeded(seen, "asking for a terminal on all three descriptors")
    equal(seen.stdout.strip(), b"30 100", "the terminal's size")
    expect(not (await box.run(scripts.ANY_TERMINAL)).ok, "an action without pty= has a terminal")


@case(
    promise="A running action's terminal can be resized, and the program sees the new size.",
    why="Full-screen programs draw garbage on a terminal whose size nobody told them.",
    needs=("pty", "stream"),
)
async def pty_resize(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.SIZE_PER_LINE, pty=Pty(rows=24, columns=80))
    bench.at_end(process.kill)
    reader = Reader(process)
    await process.write(b"\n")
    await reader.until(b"24 80")
    await process.resize(40, 120)
    await process.write(b"\n")
    await reader.until(b"40 120")


@case(
    promise="A paused sandbox does nothing until it is resumed, and then goes on where it was.",
    why="A pause that only refuses new actions saves no CPU; one that loses the process saves nothing.",
    needs=("pause", "stream"),
)
async def pause_stops_it(bench: Bench) -> None:
    box = await bench.sandbox()
    process = await box.start(scripts.TICK)
    bench.at_end(process.kill)
    reader = Reader(process)
    await reader.until(b"x\n")
    await box.pause()
    quiet = await _goes_quiet(reader)
    await box.resume()
    expect(quiet, "a process of the paused sandbox went on writing")
    before = len(reader.stdout)
    while len(reader.stdout) <= before:
        await reader.next()


async def _goes_quiet(reader: Reader) -> bool:
    """Whether the events stop. What was on its way may still arrive, but a process that ticks on is never quiet."""
    for _ in range(100):
        try:
            await reader.next(within_s=QUIET_S)
        except TimeoutError:
            return True
    return False
