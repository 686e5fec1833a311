"""The ids a process may give files: as root all, for an ordinary user those of a user namespace, as the launcher has them."""

import ctypes
import os
import pwd
import subprocess
from pathlib import Path

_NEW_USER = 0x10000000
_SET_DEATH_SIGNAL = 1
_KILL = 9
_IDS = 65536


def die_with(parent: int) -> None:
    """Be killed when `parent`, whose child this process is, ends in whatever way."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, _KILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def enter() -> bool:
    """Make this process, which has one thread, root of a user namespace unless it is root. Whether it can give files away.

    Root inside is the user; 1 to 65,535 are its subordinate ids, where /etc/subuid gives them and newuidmap grants them.
    """
    if os.geteuid() == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    ranges = _range("/etc/subuid", uid), _range("/etc/subgid", uid)
    read, write = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(write)
        os._exit(0 if os.read(read, 1) and _map(os.getppid(), (uid, gid), ranges) else 1)
    os.close(read)
    unshared = ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER) == 0
    if unshared:
        os.write(write, b"g")
    os.close(write)
    mapped = os.waitpid(mapper, 0)[1] == 0
    if unshared and not mapped:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    return unshared and mapped


def _map(process: int, own: tuple[int, int], ranges: tuple[int | None, int | None]) -> bool:
    for program, own_id, first in zip(("newuidmap", "newgidmap"), own, ranges, strict=True):
        if first is None:
            return False
        asked = [program, str(process), "0", str(own_id), "1", "1", str(first), str(_IDS - 1)]
        try:
            done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError:
            return False
        if done.returncode != 0:
            return False
    return True


def _range(path: str, uid: int) -> int | None:
    """The first of 65,535 or more subordinate ids in `path`."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in (name, str(uid)) and first.isdigit() and count.isdigit() and int(count) >= _IDS - 1:
            return int(first)
    return None
