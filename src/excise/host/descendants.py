"""Find and end every process below one, however it detached.

A subreaper's descendants cannot leave its tree: a process whose parent dies becomes the subreaper's own child. So
stopping, then killing, whatever is found below until nothing is left ends with nothing left.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable
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

    def kill_below(self, roots: Iterable[int], spare: frozenset[int] = frozenset()) -> frozenset[int]:
        """Kill everything below `roots`; dead when this returns, but for those returned, which we may not signal."""
        roots = tuple(roots)
        seen: set[int] = set()
        untouchable: set[int] = set()
        # Again until nothing new is found: a fork may be under way in a process when it is stopped.
        while new := self._stop_below(roots, spare, seen):
            seen.update(new)
            # Children before parents: a group whose last outside parent dies is continued by the kernel. All before any is
            # waited for: a process namespace's first process ends only when the parents of the others have seen them end.
            for pid in reversed(new):
                if not _kill(pid):
                    untouchable.add(pid)
            for pid in new:
                if pid not in untouchable:
                    _wait_for_end(pid)
        return frozenset(untouchable)

    def _stop_below(self, roots: tuple[int, ...], spare: frozenset[int], seen: set[int]) -> list[int]:
        """Stop what is below `roots` and not in `seen`, parents first, so that nothing forks away meanwhile."""
        stopped: dict[int, None] = {}
        while new := [pid for pid in self.below(roots, spare) if pid not in seen and pid not in stopped]:
            for pid in new:
                stopped[pid] = None
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
        return list(stopped)

    def end_all(self) -> None:
        """Kill and reap everything below this process; returns when it has no child left that we may signal."""
        while True:
            untouchable = self.kill_below((os.getpid(),))
            if not reap() or set(self.children(os.getpid())) <= untouchable:
                return

    def living(self, pids: Iterable[int]) -> list[int]:
        """Those of `pids` that run; one that is dead and waits for its parent to notice does not."""
        return [pid for pid in pids if self._state(pid) not in ("Z", "X", "")]

    def _state(self, pid: int) -> str:
        try:
            descriptor = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return ""
        with open(descriptor, "rb") as file:
            try:
                return file.read().rpartition(b")")[2].split()[0].decode()
            except (OSError, IndexError):
                return ""


def _kill(pid: int) -> bool:
    """False if we may not: it became another user, as sudo does."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _wait_for_end(pid: int) -> None:
    """Return when it is dead. One descriptor at a time: a thousand may be more than we may open."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(descriptor)


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


def reap() -> bool:
    """Collect dead children without waiting; whether any live ones are left."""
    return collect(lambda _: None)


def collect(ended: Callable[[int], None]) -> bool:
    """Tell `ended` each child that is dead, without waiting; whether any live ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        ended(pid)


def let_none_stand_still(ours: Iterable[int]) -> None:
    """Continue those of our own children that a program has stopped: who waits for them would wait for ever."""
    for pid in ours:
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
            if stopped is not None:
                os.kill(pid, signal.SIGCONT)


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
