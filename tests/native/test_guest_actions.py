"""The guest, frame by frame: programs, their ends, their surroundings, chains, epochs."""

import os
import resource
import struct
import time
from pathlib import Path

import pytest
from raw_guest import DEADLINE_S, RawGuest

from excise.action import End
from excise.guest import wire

SH = ("sh", "-c")


def test_program_streams_and_code_come_in_one_piece(guest: RawGuest) -> None:
    seen = guest.run(*SH, "echo out; echo err >&2; exit 3")
    assert (seen.stdout, seen.stderr) == (b"out\n", b"err\n")
    assert (seen.ended.end, seen.ended.exit_code, seen.ended.still_running) == (End.EXITED, 3, False)
    assert seen.ended.guest_ns > 0
    assert seen.ended.cpu_ns is not None


def test_a_signal_is_told_from_a_code(guest: RawGuest) -> None:
    ended = guest.run(*SH, "kill -TERM $$").ended
    assert (ended.end, ended.signal, ended.exit_code) == (End.SIGNALED, 15, None)


def test_merge_is_one_stream_in_order(guest: RawGuest) -> None:
    seen = guest.run(*SH, "for i in 1 2 3; do echo o$i; echo e$i >&2; done", flags=wire.FLAG_MERGE)
    assert (seen.stdout, seen.stderr) == (b"o1\ne1\no2\ne2\no3\ne3\n", b"")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("no-such-program",), 127, b"excise: no-such-program: No such file or directory\n"),
        (("/no/such/program",), 127, b"excise: /no/such/program: No such file or directory\n"),
        (("/etc/passwd",), 126, b"excise: /etc/passwd: Permission denied\n"),
        (("/",), 126, b"excise: /: Permission denied\n"),
    ],
)
def test_what_cannot_be_executed_says_so(guest: RawGuest, argv: tuple[str, ...], code: int, said: bytes) -> None:
    seen = guest.run(*argv)
    assert (seen.ended.exit_code, seen.stderr) == (code, said)


def test_programs_are_found_by_the_path_they_see(guest: RawGuest, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    path = wire.variable("PATH", f"/nowhere:{tmp_path}:/usr/bin:/bin")
    assert guest.run("tool", fields=path).stdout == b"found\n"
    assert guest.run("tool").ended.exit_code == 127


def test_variables_of_the_request_go_over_those_of_the_greeting(guest_program: Path) -> None:
    with RawGuest(guest_program, env=[("PATH", "/usr/bin:/bin"), ("ONE", "1"), ("TWO", "2")]) as guest:
        seen = guest.run("env", fields=wire.variable("TWO", "deux") + wire.variable("THREE", "3"))
        assert sorted(seen.stdout.splitlines()) == [b"ONE=1", b"PATH=/usr/bin:/bin", b"THREE=3", b"TWO=deux"]


def test_directories(guest_program: Path, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with RawGuest(guest_program, cwd=str(tmp_path)) as guest:
        assert guest.run("pwd").stdout.decode().strip() == str(tmp_path)
        assert guest.run("pwd", fields=wire.field(wire.TAG_CWD, b"below")).stdout.decode().strip() == f"{tmp_path}/below"
        assert guest.run("pwd", fields=wire.field(wire.TAG_CWD, b"/etc")).stdout == b"/etc\n"
        seen = guest.run("pwd", fields=wire.field(wire.TAG_CWD, b"nowhere"))
        assert (seen.ended.exit_code, seen.stderr) == (127, b"excise: nowhere: No such file or directory\n")


def test_programs_start_clean(guest: RawGuest) -> None:
    """Descriptors 0 to 2 only, nothing blocked or ignored, umask 022, a process group of their own, no stdin to read."""
    masks = guest.run("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status").stdout.split()  # not by a shell, which clears its own
    assert [int(masks[1], 16), int(masks[3], 16)] == [0, 0]
    look = "ls /proc/self/fd | wc -l; umask; ps -o pgid= -p $$; echo $$; cat | wc -c"
    descriptors, mask, group, own, read = guest.run(*SH, look).stdout.decode().split()
    assert descriptors == "4"  # the fourth is the directory ls reads
    assert (mask, group, read) == ("0022", own, "0")


def test_many_at_once_and_none_waits_for_another(guest: RawGuest) -> None:
    slow = guest.start("sleep", "60")
    numbers = {guest.start(*SH, f"sleep 0.1; echo {name}"): name for name in range(40)}
    seen: dict[int, bytes] = {}
    ended = 0
    while ended < len(numbers):
        frame = guest.frame()
        if frame.type == wire.OUTPUT:
            seen[frame.id] = frame.payload
        else:
            assert frame.type == wire.ENDED
            ended += 1
    assert seen == {number: f"{name}\n".encode() for number, name in numbers.items()}
    guest.kill(slow)
    assert guest.end_of(slow).ended.killed
    guest.expect(wire.KILLED, slow)


def test_a_timeout_ends_the_action(guest: RawGuest) -> None:
    fields = wire.number(wire.TAG_TIMEOUT_NS, 200_000_000)
    seen = guest.run(*SH, "echo before; exec sleep 60", fields=fields)
    assert (seen.ended.end, seen.ended.exit_code, seen.stdout) == (End.TIMED_OUT, None, b"before\n")
    assert 100_000_000 <= seen.ended.guest_ns < 30_000_000_000  # its clock begins when it is started, and the timeout's before


def test_signals_reach_the_program(guest: RawGuest) -> None:
    number = guest.start(*SH, "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.05; done", flags=wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    assert guest.output(number) == b"ready\n"
    guest.send(wire.signal(number, 1, 10))
    seen = guest.end_of(number)
    assert (seen.stdout, seen.ended.exit_code) == (b"got\n", 7)


def test_a_signal_sent_with_the_request_is_not_lost(guest: RawGuest) -> None:
    for _ in range(30):
        number, request = guest.run_frame(["sleep", "60"])
        guest.send(request, wire.signal(number, 1, 15))
        ended = guest.end_of(number).ended
        assert (ended.end, ended.signal) == (End.SIGNALED, 15)


def test_a_chain_runs_in_order_and_stops_where_asked(guest: RawGuest) -> None:
    chain, stop = wire.FLAG_CHAIN, wire.FLAG_CHAIN | wire.FLAG_STOP
    first = (("sleep 0.2; echo a", 0), ("echo b; exit 1", stop), ("echo c", chain))
    then = (("exit 4", chain), ("echo no", stop), ("echo no", stop))
    made = [guest.run_frame([*SH, script], flags=flags) for script, flags in (*first, *then)]
    guest.send(*(request for _, request in made))
    seen = [guest.end_of(number) for number, _ in made]
    assert [one.stdout for one in seen] == [b"a\n", b"b\n", b"c\n", b"", b"", b""]
    assert [one.ended.end for one in seen] == [End.EXITED] * 4 + [None] * 2


def test_a_chain_may_come_after_its_beginning_has_ended(guest: RawGuest) -> None:
    assert guest.run("false").ended.exit_code == 1
    assert guest.run("true", flags=wire.FLAG_CHAIN | wire.FLAG_STOP).ended.end is None
    assert guest.run("echo", "x", flags=wire.FLAG_CHAIN).stdout == b"x\n"


def test_a_waiting_action_can_be_killed_and_given_stdin(guest: RawGuest) -> None:
    first, one = guest.run_frame(["sleep", "0.3"])
    second, two = guest.run_frame(["cat"], flags=wire.FLAG_CHAIN | wire.FLAG_STDIN)
    third, three = guest.run_frame(["echo", "never"], flags=wire.FLAG_CHAIN)
    guest.send(one, two, wire.frame(wire.DATA, second, 1, b"early"), wire.frame(wire.EOF, second, 1), three)
    guest.kill(third)
    assert guest.end_of(third).ended.killed
    guest.expect(wire.KILLED, third)
    assert guest.end_of(first).ended.exit_code == 0
    assert guest.end_of(second).stdout == b"early"


def test_a_terminal(guest: RawGuest) -> None:
    fields = wire.number(wire.TAG_ROWS, 31) + wire.number(wire.TAG_COLUMNS, 97)
    script = "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; exec cat"
    number = guest.start(*SH, script, flags=wire.FLAG_PTY | wire.FLAG_STDIN, fields=fields)
    guest.send(wire.frame(wire.DATA, number, 1, b"typed\n"), wire.frame(wire.EOF, number, 1))
    seen = guest.end_of(number)
    assert seen.stdout.startswith(b"typed\r\n31 97\r\n") or seen.stdout.startswith(b"31 97\r\n")
    assert seen.stdout.count(b"typed\r\n") == 2
    assert b"terminal\r\n" in seen.stdout
    assert (seen.ended.exit_code, seen.stderr) == (0, b"")


def test_a_terminal_can_be_resized_and_interrupted(guest: RawGuest) -> None:
    script = "trap 'stty size' WINCH; trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    number = guest.start(*SH, script, flags=wire.FLAG_PTY | wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    assert guest.output(number) == b"ready\r\n"
    guest.send(wire.resize(number, 1, 40, 132))
    assert guest.output(number) == b"40 132\r\n"
    guest.send(wire.frame(wire.DATA, number, 1, b"\x03"))
    seen = guest.end_of(number)
    assert (seen.stdout, seen.ended.exit_code) == (b"^Cint\r\n", 5)


def test_all_that_a_terminal_was_told_is_read(guest: RawGuest) -> None:
    for _ in range(20):
        seen = guest.run("seq", "1", "3000", flags=wire.FLAG_PTY)
        assert seen.stdout == b"".join(b"%d\r\n" % number for number in range(1, 3001))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("nobody", "65534 65534 65534 /nonexistent nobody"),
        ("65534", "65534 65534 65534 /nonexistent nobody"),
        ("nobody:daemon", "65534 1 1 /nonexistent nobody"),
        ("12345", "12345 12345 12345 - -"),
        ("12345:6789", "12345 6789 6789 - -"),
    ],
)
def test_users(guest: RawGuest, user: str, expected: str) -> None:
    script = "echo $(id -u) $(id -g) $(id -G) ${HOME--} ${USER--} >/dev/stdout; echo said >/dev/stderr"
    seen = guest.run(*SH, script, fields=wire.field(wire.TAG_USER, user.encode()))
    assert (seen.stdout.decode().strip(), seen.stderr) == (expected, b"said\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("user", ["no-such-user", "nobody:no-such-group", "99999999999", ":", "-1"])
def test_users_that_do_not_exist(guest: RawGuest, user: str) -> None:
    seen = guest.run("true", fields=wire.field(wire.TAG_USER, user.encode()))
    assert seen.ended.exit_code == 127
    assert seen.stderr.startswith(b"excise: no ")
    assert guest.run("true").ended.exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may put other files in the place of these")
def test_users_are_those_of_the_images_own_files(guest_program: Path, tmp_path: Path) -> None:
    """Groups besides the first, lines that make no sense, a last line without its end, and a file that is none."""
    long = "x" * 3000
    (tmp_path / "passwd").write_text(
        f"nonsense\n::::\nann:x:1234:4321:Ann:/home/ann:/bin/sh\n{long[:900]}:x:9:9::/:/\nbob:x:77:88::/b:/bin/sh"
    )
    (tmp_path / "group").write_text("staff:x:50:bob,ann\nones:x:4321:ann\nnone:x:51:anna,an\nlast:x:52:ann")
    put = "mount --bind $1/passwd /etc/passwd && mount --bind $1/group /etc/group && exec $0"
    command = ("unshare", "--mount", "sh", "-c", put, str(guest_program), str(tmp_path))
    with RawGuest(*command) as guest:
        script = "echo $(id -u) $(id -g) $(id -G) $HOME $USER"
        as_ann = guest.run(*SH, script, fields=wire.field(wire.TAG_USER, b"ann"))
        assert as_ann.stdout == b"1234 4321 4321 50 52 /home/ann ann\n"
        assert guest.run(*SH, script, fields=wire.field(wire.TAG_USER, b"bob:last")).stdout == b"77 52 52 50 /b bob\n"
        (tmp_path / "passwd").write_text(f"{long}\nann:x:1:1::/:/\n")  # beyond a line that is too long nothing is believed
        assert guest.run("id", fields=wire.field(wire.TAG_USER, b"ann")).ended.exit_code == 127


def test_a_new_epoch_ends_the_old_life(guest: RawGuest) -> None:
    number = guest.start(*SH, "(setsid sleep 60 & echo $!); sleep 60", flags=wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    left = int(guest.output(number))
    other = guest.run(*SH, "sleep 60 >/dev/null 2>&1 & echo $!")
    old = [left, int(other.stdout)]
    guest.hello(2, [("PATH", "/usr/bin:/bin"), ("LIFE", "2")])
    assert not any(Path(f"/proc/{pid}").exists() for pid in old)
    guest.send(wire.request(wire.RUN, 900, 1, wire.field(wire.TAG_ARG, b"true")))  # of the old life: dropped
    assert guest.run(*SH, "echo $LIFE").stdout == b"2\n"
    for epoch in range(3, 8):
        guest.start("sleep", "60")
        guest.hello(epoch)
    assert guest.run("echo", "still").stdout == b"still\n"


def test_nothing_is_left_after_many(guest: RawGuest) -> None:
    before = guest.descriptors()
    for _ in range(50):
        guest.run("echo", "x", flags=wire.FLAG_STDIN)
        guest.run("true", flags=wire.FLAG_PTY)
        guest.run("nope", flags=wire.FLAG_MERGE)
    ends = time.monotonic() + DEADLINE_S
    while guest.descriptors() != before:  # a program's pipes close after its end was told
        assert time.monotonic() < ends


def test_a_large_request(guest: RawGuest) -> None:
    words = ["x" * 100_000] * 12
    assert guest.run("printf", "%.1s", *words).stdout == b"x" * 12


def test_ended_record_is_forty_bytes(guest: RawGuest) -> None:
    assert struct.unpack("<BBHiiiQQQ", guest.run("true").raw)[:2] == (0, wire.ENDED_HAS_CODE | wire.ENDED_HAS_USAGE)


def test_hundreds_at_once(guest: RawGuest) -> None:
    """The guest's own limit is raised; a program's is what it would have been."""
    numbers = {guest.start(*SH, "read line; ulimit -n", flags=wire.FLAG_STDIN) for _ in range(400)}
    guest.send(*(wire.frame(wire.EOF, number, 1) for number in numbers))
    limits: set[bytes] = set()
    while numbers:
        frame = guest.frame()
        if frame.type == wire.OUTPUT:
            limits.add(frame.payload)
        else:
            assert frame.type == wire.ENDED
            numbers.remove(frame.id)
    own, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits == {b"%d\n" % own}
