"""The guest in a gVisor sandbox: another kernel, which lets PID 1 be killed; code inside must not reach it all the same.

What is the same there as in a namespace sandbox is the same test, in a sandbox of this module's address.
"""

from collections.abc import Callable

import pytest
from test_guest import (
    FORGE,
    TRICKS,
    test_a_runner_that_is_killed_ends_its_action_and_no_other,
    test_a_runner_that_is_stopped_holds_up_only_its_own_action,
    test_a_sessions_status_cannot_be_forged_by_what_it_started,
    test_descriptors_of_the_guest_are_not_inherited,
    test_pid_1_takes_no_signals_from_inside,
    test_sockets_and_pipes_of_the_guest_are_not_among_the_descriptors,
    test_system_calls_on_the_guest,
)
from test_neighbours import pair, test_files, test_processes, test_sockets, test_system_v_memory

from excise.spec import Spec
from excise.sync import Sandbox

ADDRESS = "gvisor+guest"
Attempt = Callable[..., str]

__all__ = [
    "pair",
    "test_a_runner_that_is_killed_ends_its_action_and_no_other",
    "test_a_runner_that_is_stopped_holds_up_only_its_own_action",
    "test_a_sessions_status_cannot_be_forged_by_what_it_started",
    "test_descriptors_of_the_guest_are_not_inherited",
    "test_files",
    "test_pid_1_takes_no_signals_from_inside",
    "test_processes",
    "test_sockets",
    "test_sockets_and_pipes_of_the_guest_are_not_among_the_descriptors",
    "test_system_calls_on_the_guest",
    "test_system_v_memory",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_makes_a_session_say_that_a_command_succeeded(trick: str, box: Sandbox) -> None:
    """A shell that stops itself may be hung up on by gVisor's kernel, which takes its group for orphaned: a loss of its own."""
    seen = box.run(trick, session=f"trick-{abs(hash(trick))}")
    assert not seen.ok
    assert seen.exit_code == 1 or seen.session_replaced


KILLS = {
    "kill": "os.kill(1, 9)",
    "everybody": "os.kill(-1, 0)",
    "its group": "os.setpgid(0, 1); os.kill(0, 9)",
    "a descriptor of it": "signal.pidfd_send_signal(os.pidfd_open(1), 9)",
    "its thread": "libc.syscall(234, 1, 1, 9) and sys.exit(ctypes.get_errno())",
    "a queue": "libc.syscall(129, 1, 9, ctypes.create_string_buffer(128)) and sys.exit(ctypes.get_errno())",
    "a pipe's owner": "r, w = os.pipe(); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETOWN, 1)",
    "a pipe's owners": "r, w = os.pipe(); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETOWN, -1)",
    "a pipe's owner, by pointer": "fcntl.fcntl(os.pipe()[0], 15, b'\\1\\0\\0\\0\\1\\0\\0\\0')",
    "a socket's owner": "fcntl.ioctl(socket.socket(), 0x8902, b'\\1\\0\\0\\0')",
    "its time": "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
}


@pytest.mark.parametrize("how", KILLS)
def test_root_inside_has_no_way_to_kill_the_guest(how: str, box: Sandbox) -> None:
    imports = "import ctypes, fcntl, os, resource, signal, socket, sys; libc = ctypes.CDLL(None, use_errno=True)"
    box.run(["python3", "-c", f"{imports}\n{KILLS[how]}"], timeout_s=30)
    assert box.run("echo there").text == "there\n"


def test_a_signal_to_ones_own_goes_through(box: Sandbox) -> None:
    """The filter is about PID 1: what ordinary programs do with signals, groups and owners works."""
    seen = box.run("sleep 60 & kill -9 $!; wait $!; echo $?")
    assert seen.stdout == b"137\n"
    own = "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, os.getpid()); os.setpgid(0, 0); print('done')"
    assert box.run(["python3", "-c", own]).text == "done\n"


@pytest.mark.parametrize("part", ["mem", "root", "cwd", "environ", "maps", "exe", "auxv"])
@pytest.mark.parametrize("target", ["1", "parent"])
def test_what_proc_shows_of_the_guest(part: str, target: str, attempt: Attempt) -> None:
    assert attempt("look", target, part) in ("EPERM", "EACCES")


def test_what_the_guest_holds_beyond_a_container_is_not_handed_on(box: Sandbox) -> None:
    """CAP_SYS_ADMIN: PID 1 needs it to filter what it starts."""
    for user in (None, "65534"):
        status = box.run(["cat", "/proc/self/status"], user=user).text
        held = {line.split(":")[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
        assert not any(value & (1 << 21) for value in held.values()), held
    assert not box.run("mount -t tmpfs none /mnt 2>/dev/null || unshare --mount true 2>/dev/null").ok


def test_a_session_of_an_ordinary_user_cannot_be_forged_either(runs_here: Callable[[str], None]) -> None:
    """Its shell gains no capability that would conceal it: there it is Yama's rule that does."""
    runs_here(ADDRESS)
    with Sandbox(ADDRESS, Spec(image="host", user="65534", workdir="/tmp"), timeout_s=60) as own:
        own.write("/tmp/forge.py", FORGE)
        seen = own.run("python3 /tmp/forge.py", session="forged")
        assert seen.exit_code == 7
        assert not {"ptrace", "mem"} & set(seen.stdout.decode().split())
        assert own.run("false", session="forged").exit_code == 1
