"""The host's own counters: CPU time, steal, pressure, and what was written to files."""

import os
import re
from pathlib import Path

import msgspec

_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")
_VMSTAT = Path("/proc/vmstat")


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic totals since boot, of all cores together."""

    busy_s: float
    steal_s: float
    pressure_ns: int | None
    pressure_avg10: float | None
    written_bytes: int | None = None
    """Pages of files on disks made dirty. The devices' own counters (pgpgout, diskstats) tell seconds later, when the kernel
    gets round to it, and then of everybody's writing at once; files in memory alone are in neither."""


def counters(stat: Path = _STAT, pressure: Path = _PRESSURE, vmstat: Path = _VMSTAT) -> Counters:
    """Read the counters; what this kernel does not count is None."""
    busy_s, steal_s = _cpu_times(stat.read_text())
    found = re.search(r"^some avg10=([\d.]+) .*total=(\d+)", _text(pressure), re.MULTILINE)
    dirtied = re.search(r"^nr_dirtied (\d+)$", _text(vmstat), re.MULTILINE)
    return Counters(
        busy_s=busy_s,
        steal_s=steal_s,
        pressure_ns=int(found[2]) * 1000 if found else None,
        pressure_avg10=float(found[1]) if found else None,
        written_bytes=int(dirtied[1]) * os.sysconf("SC_PAGE_SIZE") if dirtied else None,
    )


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole host used between two readings."""

    busy_s: float = 0.0
    steal_s: float = 0.0
    written_bytes: int | None = None

    def __add__(self, other: "Used") -> "Used":
        return self._with(other, 1)

    def __sub__(self, other: "Used") -> "Used":
        return self._with(other, -1)

    def _with(self, other: "Used", sign: int) -> "Used":
        known = self.written_bytes is not None and other.written_bytes is not None
        return Used(
            busy_s=self.busy_s + sign * other.busy_s,
            steal_s=self.steal_s + sign * other.steal_s,
            written_bytes=(self.written_bytes or 0) + sign * (other.written_bytes or 0) if known else None,
        )

    def share(self, of: int) -> "Used":
        """An equal part for each of so many."""
        written = None if self.written_bytes is None else self.written_bytes // of
        return Used(busy_s=self.busy_s / of, steal_s=self.steal_s / of, written_bytes=written)


def between(before: Counters, after: Counters) -> Used:
    known = before.written_bytes is not None and after.written_bytes is not None
    return Used(
        busy_s=after.busy_s - before.busy_s,
        steal_s=after.steal_s - before.steal_s,
        written_bytes=(after.written_bytes or 0) - (before.written_bytes or 0) if known else None,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cpu_times(stat: str) -> tuple[float, float]:
    """Busy and stolen seconds. Time of nested guests is part of `user` already; waiting for a disk is not busy."""
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, steal * tick_s
