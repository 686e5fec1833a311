"""Ending what still runs in a control group whose owner is gone."""

import contextlib
import os
import select
import signal
from pathlib import Path

_MOST_ROUNDS = 8
_PATIENCE_MS = 1000


def end_members(group: Path) -> None:
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
