"""The guest (PID 1), its runner and a session's shell: code inside, also as root, cannot look into them or speak for them."""

from collections.abc import Callable

import pytest

from excise.action import End
from excise.sync import Sandbox

Attempt = Callable[..., str]

REFUSED = ("EPERM", "EACCES", "ENODATA")
PARTS = ["mem", "fd", "root", "cwd", "environ", "maps", "exe", "auxv", "stack", "syscall", "personality", "io"]


@pytest.mark.parametrize("target", ["1", "parent"])
@pytest.mark.parametrize("how", ["ptrace", "pidfd_getfd", "process_vm_writev", "process_vm_readv"])
def test_system_calls_on_the_guest(how: str, target: str, attempt: Attempt, control: Attempt) -> None:
    assert attempt(how, target) in REFUSED
    # pidfd_getfd is refused on any process inside; the others work on one's own.
    assert (control(how, "own") if how == "pidfd_getfd" else attempt(how, "own")) == "succeeded"


@pytest.mark.parametrize("target", ["1", "parent"])
@pytest.mark.parametrize("part", PARTS)
def test_what_proc_shows_of_the_guest(part: str, target: str, attempt: Attempt) -> None:
    assert attempt("look", target, part) in REFUSED


@pytest.mark.parametrize("part", ["mem", "fd", "root", "cwd", "environ", "maps", "exe", "auxv"])
def test_what_proc_shows_of_ones_own(part: str, attempt: Attempt) -> None:
    assert attempt("look", "own", part) == "succeeded"


@pytest.mark.parametrize("number", ["1", "2", "9", "11", "15", "19"])
def test_pid_1_takes_no_signals_from_inside(number: str, attempt: Attempt, box: Sandbox) -> None:
    assert attempt("kill", "1", number) == "EPERM"
    assert box.run("echo there").text == "there\n"


def test_a_runner_that_is_killed_ends_its_action_and_no_other(box: Sandbox) -> None:
    """It is a process of the sandbox; who ends it has ended his own action."""
    seen = box.run(["sh", "-c", "kill -9 $PPID; sleep 60"], timeout_s=30)
    assert not seen.ok
    assert seen.end is not End.TIMED_OUT
    assert box.run("echo there").text == "there\n"


def test_a_runner_that_is_stopped_holds_up_only_its_own_action(box: Sandbox) -> None:
    stopped = box.run(["sh", "-c", "kill -STOP $PPID; sleep 60"], timeout_s=2)
    assert stopped.end is End.TIMED_OUT
    assert box.run("echo there").text == "there\n"


def test_descriptors_of_the_guest_are_not_inherited(box: Sandbox) -> None:
    for command in (["ls", "/proc/self/fd"], "ls /proc/self/fd"):
        seen = box.run(command)
        # 3 is the listing's own.
        assert seen.text.split() == ["0", "1", "2", "3"]
    session = box.run("ls /proc/self/fd", session="main").text.split()
    assert session == ["0", "1", "2", "3"]


def test_sockets_and_pipes_of_the_guest_are_not_among_the_descriptors(box: Sandbox) -> None:
    links = box.run("readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2").text
    assert "socket" not in links


# ---- a session's status

FORGE = r"""
import os, sys, pathlib, ctypes
shell = os.getppid()
forged = []
for number in sorted(int(n) for n in os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else []:
    if number > 2:
        for text in (b"\0" * 4, b"0\n", b"\0" * 8):
            try:
                os.write(number, text); forged.append(f"own fd {number}")
            except OSError: pass
try:
    for name in os.listdir(f"/proc/{shell}/fd"):
        if int(name) > 2:
            try:
                descriptor = os.open(f"/proc/{shell}/fd/{name}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, b"\0" * 4); os.write(descriptor, b"0\n"); forged.append(f"shell's fd {name}")
            except OSError: pass
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, shell, 0, 0) == 0: forged.append("ptrace")
try:
    with open(f"/proc/{shell}/mem", "r+b"): forged.append("mem")
except OSError: pass
for part in ("environ", "maps"):
    try:
        if pathlib.Path(f"/proc/{shell}/{part}").read_bytes(): forged.append(part)
    except OSError: pass
print(" ".join(forged) or "nothing")
sys.exit(7)
"""


def test_a_sessions_status_cannot_be_forged_by_what_it_started(box: Sandbox) -> None:
    box.write("/tmp/forge.py", FORGE)
    seen = box.run("python3 /tmp/forge.py", session="forged")
    assert (seen.exit_code, seen.stdout.decode()) == (7, "nothing\n")
    # Left behind, it would have all the time it wants, and the next command's descriptors to choose from.
    box.run("(sleep 0.2; python3 /tmp/forge.py > /tmp/forged) & :", session="forged")
    later = box.run("sleep 0.6; false", session="forged")
    assert later.exit_code == 1
    assert box.run("wait; cat /tmp/forged", session="forged").text == "nothing\n"


def test_the_forger_can_forge_where_the_shell_is_an_ordinary_one(box: Sandbox) -> None:
    """The same script below a bash of one's own finds ways in."""
    box.write("/tmp/forge.py", FORGE)
    script = "exec 9>/tmp/status; python3 /tmp/forge.py; :"
    seen = box.run(["bash", "-c", script])
    assert "own fd 9" in seen.text
    assert "shell's fd 9" in seen.text
    assert "ptrace" in seen.text
    assert "mem" in seen.text


TRICKS = [
    "exit() { builtin true; }; return() { builtin true; }; false",
    "printf() { :; }; echo() { :; }; read() { :; }; eval() { :; }; false",
    "PROMPT_COMMAND=true; BASH_ENV=/dev/null; false",
    "exec 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; false",
    "for fd in /proc/$$/fd/*; do { printf '\\0\\0\\0\\0'; echo 0; } > $fd; done 2>/dev/null; false",
    "(kill -STOP $$; sleep 0.2; kill -CONT $$) & false",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_session_says_what_its_command_ended_with(trick: str, box: Sandbox) -> None:
    """Functions named like what a shell uses, closed descriptors, writes to all of them: the command failed all the same."""
    seen = box.run(trick, session=f"trick-{abs(hash(trick))}")
    assert (seen.end, seen.exit_code) == (End.EXITED, 1)
