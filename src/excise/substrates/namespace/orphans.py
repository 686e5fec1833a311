"""Removing a control group whose owner is gone, and ending what still runs in it."""

import contextlib
import os
import select
import signal
from pathlib import Path

_MOST_ROUNDS = 8
_PATIENCE_MS = 1000


def remove(group: Path) -> bool:
    """Whether it is gone now. Not if another's gc was faster, or a process is not to be ended: the next gc sees it again."""
    _end_members(group)
    _await_empty(group)
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _await_empty(group: Path) -> None:
    """The kernel holds on to the dead for a moment longer than a wait for them does; v2 says when it no longer does."""
    try:
        events = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # v1 has none
    try:
        changed = select.poll()
        changed.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events, 4096, 0) and changed.poll(_PATIENCE_MS):
            pass
    finally:
        os.close(events)


def _end_members(group: Path) -> None:
    """SIGKILL to every process in `group`, again while new ones are found, each waited for. They die with their owner as a
    rule, so there is mostly none."""
    for _ in range(_MOST_ROUNDS):
        descriptors = _killed(group)
        if not descriptors:
            return
        try:
            _wait(descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _members(group: Path) -> set[int]:
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split() if pid != "0"}
    except OSError:
        return set()


def _killed(group: Path) -> list[int]:
    opened: dict[int, int] = {}
    for pid in _members(group):
        with contextlib.suppress(OSError):
            opened[pid] = os.pidfd_open(pid)
    # Listed while we hold it: the number is still that of a member, and of no one who came after it.
    members = _members(group)
    for pid, descriptor in opened.items():
        if pid in members:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return list(opened.values())


def _wait(descriptors: list[int]) -> None:
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    left = set(descriptors)
    while left:
        ended = waiting.poll(_PATIENCE_MS)
        if not ended:
            return  # one that sleeps in the kernel
        for descriptor, _ in ended:
            waiting.unregister(descriptor)
            left.discard(descriptor)
