"""Daemons that serve sandboxes on this host: what must be still while a control block runs."""

from pathlib import Path
from typing import NamedTuple

NAMES = frozenset(
    {
        "dockerd",
        "containerd",
        "podman",
        "buildkitd",
        "crio",
        "kubelet",
        "k3s-server",
        "k3s-agent",
        "libvirtd",
        "virtqemud",
        "lxd",
        "incusd",
    }
)
"""As the kernel calls them, with 15 letters at most."""
_STILL = frozenset("TtZX")
"""States in which a process runs nothing: stopped, traced, dead. A daemon that is only idle answers timers all the same."""


class Daemon(NamedTuple):
    """One that is awake."""

    name: str
    pid: int


def awake(proc: Path = Path("/proc")) -> tuple[Daemon, ...]:
    """The daemons that run, and are not stopped by a signal."""
    found: list[Daemon] = []
    for entry in proc.glob("[0-9]*/stat"):
        try:
            pid, _, rest = entry.read_text().partition(" (")
        except OSError:
            continue  # It ended while we looked.
        name, _, after = rest.rpartition(") ")
        if name in NAMES and after[:1] not in _STILL:
            found.append(Daemon(name, int(pid)))
    return tuple(sorted(found))
