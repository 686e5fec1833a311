"""One action's own process: it starts the program, times it next to it, and answers for all that it started.

It outlives the program while processes the program left behind are running, so that they stay below it.
"""

import contextlib
import fcntl
import grp
import os
import pwd
import resource
import select
import signal
import socket
import struct
import termios
import time
from typing import Any

from excise.host import packets
from excise.host.descendants import Tree, children_wake, reap
from excise.host.kernel import become_subreaper

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Place:
    """Where a sandbox's processes run: its root (None: the host's own) and its working directory."""

    def __init__(self, root: str | None, workdir: str, *, limited: bool = False) -> None:
        self.root = root
        self.workdir = workdir
        self.limited = limited
        """The root has a size of its own, so that a full one is the sandbox's doing."""

    def enter(self, cwd: str | None, user: str | None) -> dict[str, str]:
        """Go there, for good; the variables that follow from the user are returned. OSError if there is no such place."""
        if self.root is not None:
            os.chroot(self.root)
            os.chdir("/")
        variables = _become(user) if user is not None else {}
        os.chdir(self.workdir)
        if cwd is not None:
            os.chdir(cwd)
        return variables


def _become(user: str) -> dict[str, str]:
    """Drop to `user` (a name of the root's own passwd, or a number, with an optional :group)."""
    name, _, group = user.partition(":")
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        if not name.isdecimal():
            raise LookupError(f"no user {name!r} in the image's /etc/passwd") from None
        entry = None
    uid = int(name) if entry is None else entry.pw_uid
    gid = _group(group) if group else (uid if entry is None else entry.pw_gid)
    os.setgroups([gid] if entry is None else os.getgrouplist(entry.pw_name, gid))
    os.setgid(gid)
    os.setuid(uid)
    return {} if entry is None else {"HOME": entry.pw_dir, "USER": entry.pw_name}


def _group(group: str) -> int:
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise LookupError(f"no group {group!r} in the image's /etc/group") from None


def run(place: Place, request: dict[str, Any], reply: socket.socket, streams: list[int]) -> None:
    """Be the runner of one command. `streams`: its stdin, stdout and stderr, then the reading ends of the last two."""
    become_subreaper()
    os.setsid()
    tree = Tree()
    try:
        variables = place.enter(request["cwd"], request["user"])
    except (OSError, LookupError, ValueError) as error:  # ValueError: a NUL byte in the directory's name
        _refuse(reply, streams[2], NOT_FOUND, str(error))
        return
    environment = {**variables, **request["env"]}
    began_ns = time.monotonic_ns()
    try:
        pid = _spawn(request["argv"], environment, streams, terminal=request["pty"])
    except ValueError as error:  # a variable's name holds "=" or a NUL byte
        _refuse(reply, streams[2], NOT_EXECUTABLE, str(error))
        return
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        _refuse(reply, streams[2], code, f"{request['argv'][0]}: {error.strerror}")
        return
    for descriptor in set(streams[:3]):
        os.close(descriptor)
    _attend(place, pid, began_ns, reply=reply, tree=tree, leftovers=streams[3:])


def _refuse(reply: socket.socket, stderr: int, code: int, reason: str) -> None:
    with contextlib.suppress(OSError):
        os.write(stderr, f"excise: {reason}\n".encode())
    answer(reply, {"code": code, "guest_ns": 0})


def find_program(name: str, environment: dict[str, str]) -> str:
    """As execvp finds it, but by the PATH the program will see and in the root it will see."""
    if "/" in name:
        return name
    refused: OSError = FileNotFoundError(2, "not found")
    for directory in environment.get("PATH", "/usr/bin:/bin").split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
        if os.path.exists(path):
            refused = PermissionError(13, "not executable")
    raise refused


def _spawn(argv: list[str], environment: dict[str, str], streams: list[int], *, terminal: bool) -> int:
    program = find_program(argv[0], environment)
    if terminal:
        return _spawn_on_terminal(program, argv, environment, streams[0])
    actions = [(os.POSIX_SPAWN_DUP2, streams[number], number) for number in range(3)]
    return os.posix_spawn(program, argv, environment, file_actions=actions, setsid=True, setsigdef=_IGNORED_BY_PYTHON)


def _spawn_on_terminal(program: str, argv: list[str], environment: dict[str, str], terminal: int) -> int:
    """posix_spawn cannot make a terminal the controlling one; a plain fork can."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, argv, environment)
    except (OSError, ValueError) as error:
        os.write(2, f"excise: {argv[0]}: {error}\n".encode())
        if isinstance(error, FileNotFoundError):
            os._exit(NOT_FOUND)
    finally:
        os._exit(NOT_EXECUTABLE)


def _attend(place: Place, pid: int, began_ns: int, *, reply: socket.socket, tree: Tree, leftovers: list[int]) -> None:
    """Wait for the program's end while listening to the client; then stay as long as it left processes behind."""
    end = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(reply, select.POLLIN)
    killed = False
    while True:
        ready = dict(poll.poll())
        if end in ready:
            ended_ns = time.monotonic_ns()
            break
        order = _order(reply)
        if "leave" in order:
            # What runs belongs to the sandbox now; its output is nobody's.
            _stay(reply, tree, leftovers)
            return
        if "kill" in order:
            # Asked to, or the client is gone: nothing this action started may live on.
            killed = True
            tree.kill_below((os.getpid(),))
        elif "signal" in order:
            _pass_on(order["signal"], pid, order["depth"], tree)
    _, status, usage = os.wait4(pid, 0)
    if killed:
        tree.end_all()
    living = reap()
    outcome = {**_account(status, usage), "guest_ns": ended_ns - began_ns, "killed": killed, "living": living}
    if place.limited and status != 0 and _full():
        outcome["out_of_disk"] = True
    answer(reply, outcome)
    if living:
        _stay(reply, tree, leftovers)


def _full() -> bool:
    """Whether the root (by now our own /) has no block or no inode left."""
    seen = os.statvfs("/")
    return seen.f_bavail == 0 or seen.f_favail == 0


def _account(status: int, usage: resource.struct_rusage) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "cpu_ns": round((usage.ru_utime + usage.ru_stime) * 1e9),
        # The kernel starts a spawned program's peak at its parent's: a smaller figure would be ours, not the program's.
        "max_rss_bytes": usage.ru_maxrss * 1024 if usage.ru_maxrss > own_peak else None,
    }


def _order(reply: socket.socket) -> dict[str, Any]:
    """The client's next order. A client that is gone wants everything killed."""
    packet = packets.receive(reply)
    return {"kill": True} if packet is None else packet[0]


def _pass_on(number: int, pid: int, depth: int, tree: Tree) -> None:
    """A signal for the program's process group; or, `depth` processes below a command around it, for it alone."""
    target = pid
    for _ in range(depth):
        target = next(iter(tree.children(target)), 0)
    with contextlib.suppress(ProcessLookupError):
        if target == pid:
            os.killpg(pid, number)
        elif target:
            os.kill(target, number)


def _stay(reply: socket.socket, tree: Tree, leftovers: list[int]) -> None:
    """Keep what was left behind below us until it ends, or until the client asks for its death.

    Once the client has read what the action printed, nobody reads its pipes any more; what still comes is read here and
    thrown away, so that a process that lives on neither stalls nor dies of a closed pipe.
    """
    woken = children_wake()
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(reply, select.POLLIN)
    while reap():
        for descriptor, _ in poll.poll():
            if descriptor == woken:
                os.read(woken, 512)
            elif descriptor in leftovers:
                if not _discard(descriptor):
                    poll.unregister(descriptor)
            elif (packet := packets.receive(reply)) is not None and "kill" in packet[0]:
                tree.end_all()
                answer(reply, {"killed": True})
                return
            else:
                if packet is None:
                    poll.unregister(reply)
                for pipe in leftovers:
                    poll.register(pipe, select.POLLIN)


def _discard(descriptor: int) -> bool:
    """Throw away what a pipe holds. False at its end."""
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return True


def answer(reply: socket.socket, record: dict[str, Any]) -> None:
    """Tell the client; if it is gone there is nobody to tell."""
    with contextlib.suppress(OSError):
        packets.tell(reply, record)


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
