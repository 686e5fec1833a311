"""Find and end every process below one, however it detached.

A subreaper's descendants cannot leave its tree: a process whose parent dies becomes the subreaper's own child. So
stopping, then killing, whatever is found below until nothing is left ends with nothing left.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from types import FrameType


class Tree:
    """The processes below this one, read through a /proc that stays reachable after a chroot."""

    def __init__(self) -> None:
        self._proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)

    def children(self, pid: int) -> list[int]:
        """Direct children of every thread of `pid`; none if it is gone."""
        found: list[int] = []
        try:
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return found
        try:
            for thread in os.listdir(tasks):
                found += _numbers(f"{thread}/children", tasks)
        finally:
            os.close(tasks)
        return found

    def below(self, roots: Iterable[int], spare: frozenset[int] = frozenset()) -> list[int]:
        """Every process below `roots`, parents first; what is in `spare`, and below it, is left out."""
        found: list[int] = []
        waiting = list(roots)
        while waiting:
            for pid in self.children(waiting.pop()):
                if pid not in spare:
                    found.append(pid)
                    waiting.append(pid)
        return found

    def kill_below(self, roots: Iterable[int], spare: frozenset[int] = frozenset()) -> None:
        """Kill everything below `roots`; dead when this returns. Stopped first, so that nothing forks away meanwhile."""
        roots = tuple(roots)
        stopped: dict[int, int] = {}
        while new := [pid for pid in self.below(roots, spare) if pid not in stopped]:
            for pid in new:
                _signal(pid, signal.SIGSTOP)
                stopped[pid] = _pidfd(pid)
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
        for descriptor in stopped.values():
            if descriptor >= 0:
                select.select([descriptor], [], [])
                os.close(descriptor)

    def end_all(self) -> None:
        """Kill and reap everything below this process; returns when it has no child left."""
        while True:
            self.kill_below((os.getpid(),))
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _numbers(path: str, directory: int) -> list[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=directory)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        try:
            return [int(word) for word in file.read().split()]
        except OSError:
            return []


def _signal(pid: int, number: int) -> None:
    # Gone already; or a set-user-ID program, which the caller's wait and its deadline will show.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> bool:
    """Collect dead children without waiting; whether any live ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the wake-up descriptor to be written to."""


def children_wake() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def children_wake_nobody() -> None:
    """Undo `children_wake` in a forked child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
