"""CPU seconds: of this process, of what it started, and of the whole host."""

import os
import resource
from pathlib import Path

import msgspec

from excise.meter.host import counters

_PROC = Path("/proc")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds between two readings."""

    own_s: float
    children_s: float
    """What this process started, and what that started: alive, or waited for by whoever started it."""
    host_s: float
    """Everybody's: the only reading that has a daemon's work, and other people's too."""

    def __sub__(self, before: "Spent") -> "Spent":
        return Spent(
            own_s=self.own_s - before.own_s,
            children_s=max(0.0, self.children_s - before.children_s),  # one that nobody waited for takes its seconds along
            host_s=self.host_s - before.host_s,
        )


def spent() -> Spent:
    """As of now, since this process, and the host, began."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(
        own_s=own.ru_utime + own.ru_stime,
        children_s=reaped.ru_utime + reaped.ru_stime + _alive_s(os.getpid()),
        host_s=counters().busy_s,
    )


def _alive_s(pid: int, proc: Path = _PROC) -> float:
    """Of all living descendants of `pid`, with what they have waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended while we looked
            # From the third field on: state ppid ... utime stime cutime cstime are 14 to 17.
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            total += ticks[child]
            waiting.append(child)
    return total / os.sysconf("SC_CLK_TCK")
