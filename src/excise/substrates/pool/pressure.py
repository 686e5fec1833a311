"""Whether the host has anything to spare: while rollouts wait for it, nothing is made in advance."""

from pathlib import Path

MEMORY_PERCENT = 10.0
"""Of the last ten seconds in which some task waited for memory. Reclaim slows everybody down long before it kills."""
IO_PERCENT = 60.0
CPU_PERCENT = 98.0
"""High: a busy processor is what a rollout host is for, and a claim that misses needs the same work later."""
LEAST_FREE = 0.05
"""Of all memory."""
LOOK_AGAIN_S = 1.0

_MOST = {"memory": MEMORY_PERCENT, "io": IO_PERCENT, "cpu": CPU_PERCENT}


def host_pressure(proc: Path = Path("/proc")) -> str:
    """Why nothing should be made now, in one sentence; empty if it may be. A kernel that does not say has none."""
    for what, most in _MOST.items():
        percent = _some_avg10(proc / "pressure" / what)
        if percent >= most:
            return f"tasks waited for {what} {percent:.0f} % of the last 10 s"
    free = _free_share(proc / "meminfo")
    return f"{free:.1%} of the memory is available" if free < LEAST_FREE else ""


def no_pressure() -> str:
    """For pools whose source is no part of this host, or runs on another clock."""
    return ""


def _some_avg10(path: Path) -> float:
    for line in _lines(path):
        kind, *pairs = line.split()
        if kind == "some":
            return float(dict(pair.split("=") for pair in pairs)["avg10"])
    return 0.0


def _free_share(path: Path) -> float:
    said = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in _lines(path))}
    whole = said.get("MemTotal", 0)
    return said.get("MemAvailable", whole) / whole if whole else 1.0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not this kernel's
        return []
