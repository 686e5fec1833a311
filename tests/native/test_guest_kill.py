"""The guest, frame by frame: everything an action started dies with it, however it detached, and nothing else does."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from raw_guest import RawGuest, alive, wait_until_gone

from excise.action import End
from excise.guest import wire

SH = ("sh", "-c")
LOUD = "exec 3>&1; say() { echo $1 >&3; }; "
DETACHED = {
    "background": "sleep 60 & say $!; wait",
    "setsid": "setsid sh -c 'echo $$ >&3; exec sleep 60' & sleep 60",
    "double fork": "(setsid sh -c '(echo $(exec sh -c \"echo \\$PPID\") >&3; exec sleep 60) &' &); sleep 60",
    "no environment": "env -i setsid sh -c 'echo $$ >&3; exec sleep 60' & sleep 60",
    "nohup": "nohup sh -c 'echo $$ >&3; exec sleep 60' >/dev/null 2>&1 & sleep 60",
    "deaf to signals": "trap '' TERM HUP INT; sh -c 'trap \"\" TERM HUP INT; echo $$ >&3; sleep 60; sleep 60' & sleep 60",
    "stopped": "sh -c 'echo $$ >&3; kill -STOP $$' & sleep 60",
    "orphan": "sh -c 'sh -c \"echo \\$\\$ >&3; exec sleep 60\" & exit 0'; sleep 60",
}

BOMB = """
import os, time
for _ in range(12):
    if not os.fork():
        break
else:
    print(1, flush=True)
    time.sleep(60)
while True:
    if os.fork():
        os._exit(0)
"""


@pytest.mark.parametrize("how", DETACHED)
def test_a_kill_ends_what_detached(guest: RawGuest, how: str) -> None:
    bystander = guest.run(*SH, "sleep 60 >/dev/null 2>&1 & echo $!")
    number = guest.start(*SH, LOUD + DETACHED[how], flags=wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    pid = int(guest.output(number))
    assert alive(pid)
    guest.kill(number)
    assert guest.end_of(number).ended.killed
    guest.expect(wire.KILLED, number)
    assert not alive(pid)
    assert alive(int(bystander.stdout))


@pytest.mark.parametrize("how", DETACHED)
def test_a_timeout_ends_what_detached(guest: RawGuest, how: str) -> None:
    seen = guest.run(*SH, LOUD + DETACHED[how], fields=wire.number(wire.TAG_TIMEOUT_NS, 400_000_000))
    assert seen.ended.end is End.TIMED_OUT
    assert not alive(int(seen.stdout))


def test_what_an_action_left_lives_until_it_is_killed(guest: RawGuest) -> None:
    seen = guest.run(*SH, "setsid sleep 60 & setsid sleep 60 & echo $!")
    pid = int(seen.stdout)
    assert seen.ended.still_running
    guest.run("true")
    assert alive(pid)
    guest.kill(1)
    guest.expect(wire.KILLED, 1)
    assert not alive(pid)
    guest.kill(1)  # again, and for what never was: there is nothing to kill
    guest.expect(wire.KILLED, 1)
    guest.kill(777)
    guest.expect(wire.KILLED, 777)


def test_an_action_whose_leftovers_end_is_forgotten(guest: RawGuest) -> None:
    for _ in range(20):
        assert guest.run(*SH, "sleep 0.05 &").ended.still_running
    assert guest.run("echo", "x").stdout == b"x\n"


def test_a_fork_bomb_is_killed(guest: RawGuest) -> None:
    """Twelve lines of processes that replace themselves as fast as they can."""
    number = guest.start("python3", "-c", BOMB, flags=wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    guest.output(number)
    guest.kill(number)
    assert guest.end_of(number).ended.killed
    guest.expect(wire.KILLED, number)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "for _ in range(12)" not in listed


def runner_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_runner_is_its_actions_end_and_nobody_elses(guest: RawGuest) -> None:
    other = guest.start("sleep", "60")
    number = guest.start(*SH, "setsid sleep 60 & echo $! $$; wait", flags=wire.FLAG_STARTED)
    guest.expect(wire.STARTED, number)
    left, main = (int(word) for word in guest.output(number).split())
    os.kill(runner_of(main), signal.SIGKILL)
    seen = guest.end_of(number)
    assert (seen.ended.end, seen.ended.signal) == (End.SIGNALED, 9)
    assert not alive(left)
    assert not alive(main)
    assert guest.run("echo", "on").stdout == b"on\n"
    guest.kill(other)
    assert guest.end_of(other).ended.killed


def test_a_runner_killed_while_idle_costs_no_action(guest: RawGuest) -> None:
    for _ in range(10):
        runner = int(guest.run(*SH, "echo $PPID").stdout)
        os.kill(runner, signal.SIGKILL)
        assert guest.run("echo", "on").stdout == b"on\n"


def test_a_stopped_runner_goes_on(guest: RawGuest) -> None:
    for _ in range(10):
        seen = guest.run(*SH, "kill -STOP $PPID; echo x")
        assert (seen.stdout, seen.ended.exit_code) == (b"x\n", 0)


def test_a_runner_takes_no_other_signal(guest: RawGuest) -> None:
    script = "for s in TERM INT HUP SEGV ABRT QUIT USR1 PIPE ALRM CHLD; do kill -$s $PPID; done; echo lives; exit 4"
    seen = guest.run(*SH, script)
    assert (seen.stdout, seen.ended.exit_code) == (b"lives\n", 4)


def test_the_links_end_ends_everything(guest_program: Path) -> None:
    with RawGuest(guest_program) as guest:
        number = guest.start(*SH, "setsid sleep 60 & echo $! $$; wait", flags=wire.FLAG_STARTED)
        guest.expect(wire.STARTED, number)
        pids = [int(word) for word in guest.output(number).split()]
        pids.append(int(guest.run(*SH, "sleep 60 & echo $!").stdout))
    assert guest.process.returncode == 0
    for pid in pids:
        wait_until_gone(pid)


STORM = """
import contextlib, os, signal, sys, time
guest, ends = int(sys.argv[1]), time.monotonic() + 2
while time.monotonic() < ends:
    for child in open(f"/proc/{guest}/task/{guest}/children").read().split():
        if int(child) != os.getppid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
"""


def test_a_storm_of_killed_runners_costs_only_their_actions(guest: RawGuest) -> None:
    """A process that kills every runner but its own as it appears, between fork and exec too."""
    storm = guest.start("python3", "-c", STORM, str(guest.process.pid))
    ended: dict[int, wire.Ended] = {}
    waiting: set[int] = set()
    while storm not in ended:
        while len(waiting) < 8:
            waiting.add(guest.start("echo", "x"))
        frame = guest.frame()
        if frame.type == wire.ENDED:
            ended[frame.id] = wire.ended(frame.payload)
            waiting.discard(frame.id)
    assert (ended[storm].exit_code, ended[storm].signal) == (0, 0)
    assert any(one.signal == 9 for one in ended.values())  # it did hit
    for number in waiting:
        while number not in ended:
            frame = guest.frame()
            if frame.type == wire.ENDED:
                ended[frame.id] = wire.ended(frame.payload)
    assert {one.signal for one in ended.values()} <= {0, 9}
    for _ in range(20):
        assert guest.run("echo", "on").stdout == b"on\n"
