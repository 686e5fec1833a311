"""The guest, frame by frame: credit both ways, and who is held up by whom."""

import hashlib
import struct
from pathlib import Path

from raw_guest import RawGuest, alive, wait_until_gone

from excise.action import End
from excise.guest import wire

SH = ("sh", "-c")
MEBIBYTE = 1 << 20


def window(count: int) -> bytes:
    return wire.number(wire.TAG_WINDOW, count)


def take(guest: RawGuest, number: int, count: int) -> bytes:
    """Exactly this many bytes of output."""
    data = b""
    while len(data) < count:
        data += guest.output(number)
    assert len(data) == count
    return data


def peak_kib(guest: RawGuest) -> int:
    status = Path(f"/proc/{guest.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_output_stays_within_its_credit(guest: RawGuest) -> None:
    number = guest.start("head", "-c", "100000", "/dev/zero", fields=window(1000))
    take(guest, number, 1000)
    assert guest.silent(0.3)
    guest.send(wire.credit(number, 1, wire.STDOUT, 50_000))
    take(guest, number, 50_000)
    assert guest.silent(0.3)
    guest.send(wire.credit(number, 1, wire.STDOUT, 1_000_000))
    assert len(guest.end_of(number).stdout) == 49_000


def test_the_end_waits_for_the_output_before_it(guest: RawGuest) -> None:
    number = guest.start(*SH, "printf %s abcdef; printf %s xyz >&2", fields=window(2))
    first = {guest.frame().payload, guest.frame().payload}
    assert first == {b"ab", b"xy"}
    assert guest.silent(0.3)
    guest.send(wire.credit(number, 1, wire.STDERR, 1))
    assert guest.output(number) == b"z"
    assert guest.silent(0.3)
    guest.send(wire.credit(number, 1, wire.STDOUT, 4))
    seen = guest.end_of(number)
    assert (seen.stdout, seen.ended.exit_code) == (b"cdef", 0)


def test_without_credit_nothing_comes_and_a_kill_does_not_wait_for_it(guest: RawGuest) -> None:
    number = guest.start(*SH, "echo lost", fields=window(0))
    assert guest.silent(0.3)
    guest.kill(number)
    seen = guest.end_of(number)
    assert (seen.stdout, seen.ended.end, seen.ended.exit_code) == (b"", End.EXITED, 0)
    guest.expect(wire.KILLED, number)


def test_one_stalled_reader_holds_up_nobody_else(guest: RawGuest) -> None:
    stalled = guest.start("cat", "/dev/zero", fields=window(4096))
    take(guest, stalled, 4096)
    for _ in range(20):
        assert guest.run("echo", "x").stdout == b"x\n"
    rest = guest.run("head", "-c", str(3 * MEBIBYTE), "/dev/zero", fields=window(4 * MEBIBYTE))
    assert len(rest.stdout) == 3 * MEBIBYTE
    guest.kill(stalled)
    assert guest.end_of(stalled).ended.killed
    guest.expect(wire.KILLED, stalled)


def test_a_host_that_does_not_read_stalls_the_programs_and_not_the_memory(guest: RawGuest) -> None:
    numbers = [guest.start("head", "-c", str(8 * MEBIBYTE), "/dev/zero", fields=window(16 * MEBIBYTE)) for _ in range(4)]
    assert not guest.silent(5)  # it has begun; and now nobody reads
    before = peak_kib(guest)
    counts = dict.fromkeys(numbers, 0)
    ended = 0
    while ended < len(numbers):
        frame = guest.frame()
        if frame.type == wire.OUTPUT:
            counts[frame.id] += len(frame.payload)
        ended += frame.type == wire.ENDED
    assert set(counts.values()) == {8 * MEBIBYTE}
    assert peak_kib(guest) - before < 4096


def test_stdin_comes_through_and_is_credited(guest: RawGuest) -> None:
    number = guest.start("sha256sum", flags=wire.FLAG_STDIN)
    total, credit, sent = 2 * MEBIBYTE, wire.WINDOW, 0
    while sent < total:
        piece = min(credit, total - sent, wire.MAX_PAYLOAD)
        if piece:
            guest.send(wire.frame(wire.DATA, number, 1, b"z" * piece))
            sent, credit = sent + piece, credit - piece
        else:
            (granted,) = struct.unpack("<I", guest.expect(wire.CREDIT, number).payload)
            credit += granted
    guest.send(wire.frame(wire.EOF, number, 1))
    assert guest.end_of(number).stdout.split()[0].decode() == hashlib.sha256(b"z" * total).hexdigest()


def test_stdin_nobody_reads_is_no_harm(guest: RawGuest) -> None:
    number = guest.start(*SH, "exec <&-; sleep 0.3; echo done", flags=wire.FLAG_STDIN | wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    for _ in range(3):
        guest.send(wire.frame(wire.DATA, number, 1, b"z" * 80_000))
    assert guest.end_of(number).stdout == b"done\n"
    guest.send(wire.frame(wire.DATA, number, 1, b"late"), wire.frame(wire.EOF, number, 1))
    assert guest.run("echo", "on").stdout == b"on\n"


def test_stdin_before_the_program_reads_is_held(guest: RawGuest) -> None:
    number = guest.start(*SH, "sleep 0.2; wc -c", flags=wire.FLAG_STDIN)
    guest.send(wire.frame(wire.DATA, number, 1, b"z" * wire.WINDOW), wire.frame(wire.EOF, number, 1))
    assert guest.end_of(number).stdout == b"%d\n" % wire.WINDOW


def test_more_stdin_than_credit_ends_the_guest(guest: RawGuest) -> None:
    number = guest.start("sleep", "60", flags=wire.FLAG_STDIN)
    frame = wire.frame(wire.DATA, number, 1, b"z" * wire.WINDOW)
    guest.send(frame, frame)
    assert guest.process.wait(30) == 1


def test_what_is_left_running_may_print_without_end(guest: RawGuest) -> None:
    """It neither stalls nor dies of a closed pipe, and nobody hears it."""
    seen = guest.run(*SH, "echo said; (while :; do echo noise; echo noise >&2; done) & echo $!")
    said, pid = seen.stdout.split()[0], next(int(word) for word in seen.stdout.split() if word.isdigit())
    assert said == b"said"
    assert seen.ended.still_running
    assert guest.silent(0.5)
    assert alive(pid)
    guest.kill(1)
    guest.expect(wire.KILLED, 1)
    wait_until_gone(pid)


def test_an_open_pipe_does_not_hold_up_the_end(guest: RawGuest) -> None:
    seen = guest.run(*SH, "sleep 60 & echo hi")
    assert (seen.stdout, seen.ended.still_running, seen.ended.exit_code) == (b"hi\n", True, 0)
