"""Control groups: one in every hierarchy for all that the cluster runs, so that all of it can be found and ended."""

import os
import select
import signal
from pathlib import Path

from cluster.places import GROUP

_TOP = Path("/sys/fs/cgroup")
_PARTS = "parts"
_END_S = 30.0


def hierarchies() -> list[Path]:
    """Where groups can be made: the one tree of version 2, or each controller's of version 1, and its controllerless one."""
    if (_TOP / "cgroup.controllers").exists():
        return [_TOP]
    named = {path.resolve() for path in _TOP.iterdir() if (path / "cgroup.procs").exists()}  # cpu may be a link to cpu,cpuacct
    return sorted(named)


def make() -> None:
    """The kubelet wants its root group to be there, in every hierarchy."""
    for hierarchy in hierarchies():
        group = hierarchy / GROUP
        (group / _PARTS).mkdir(parents=True, exist_ok=True)
        if hierarchy.name == "cpuset":
            _inherit_cpus(group)


def _inherit_cpus(group: Path) -> None:
    """Of version 1 alone: a cpuset group can hold no process before it says which processors and memory are its."""
    for place in (group, group / _PARTS):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (place / name).write_text((place.parent / name).read_text())


def parts() -> Path:
    """Where a daemon and all that it starts are, in one hierarchy: the others stay as they were for it."""
    return _tracking() / GROUP / _PARTS


def _tracking() -> Path:
    """The hierarchy without controllers if there is one: being in it costs nothing and limits nothing."""
    found = hierarchies()
    return next((path for path in found if path.name in ("unified", "pids")), found[0])


def end() -> None:
    """Kill every process below our groups, and remove the groups."""
    for hierarchy in hierarchies():
        top = hierarchy / GROUP
        for group in _below(top):
            _kill(group)
    for hierarchy in hierarchies():
        for group in _below(hierarchy / GROUP):
            group.rmdir()


def _below(top: Path) -> list[Path]:
    """`top` and every group in it, the deepest first."""
    return [Path(place) for place, _, _ in os.walk(top, topdown=False)]


def _kill(group: Path) -> None:
    """Until none is left: one that forks while it is read is met the next time round. Each is waited for, never polled."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            try:
                process = os.pidfd_open(int(pid))
            except ProcessLookupError:
                continue
            try:
                _kill_held(process, int(pid))
            finally:
                os.close(process)


def _kill_held(process: int, pid: int) -> None:
    """The process that was listed, unless it ended before it was held and another has its number."""
    try:
        ours = f"/{GROUP}" in Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return
    if ours:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], _END_S)[0]:
            raise TimeoutError(f"process {pid} does not end, even killed")
