"""The host's own counters: CPU time, steal and pressure."""

import os
import re
from pathlib import Path

import msgspec

_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic totals since boot, of all cores together."""

    busy_s: float
    steal_s: float
    pressure_ns: int | None
    pressure_avg10: float | None


def counters(stat: Path = _STAT, pressure: Path = _PRESSURE) -> Counters:
    """Read the counters; pressure is None where the kernel has no PSI."""
    busy_s, steal_s = _cpu_times(stat.read_text())
    try:
        text = pressure.read_text()
    except OSError:
        text = ""
    found = re.search(r"^some avg10=([\d.]+) .*total=(\d+)", text, re.MULTILINE)
    return Counters(
        busy_s=busy_s,
        steal_s=steal_s,
        pressure_ns=int(found[2]) * 1000 if found else None,
        pressure_avg10=float(found[1]) if found else None,
    )


def _cpu_times(stat: str) -> tuple[float, float]:
    """Busy and stolen seconds. Time of nested guests is part of `user` already; waiting for a disk is not busy."""
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, steal * tick_s
