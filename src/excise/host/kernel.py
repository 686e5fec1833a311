"""The few system calls Python has no name for."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: Callable[..., int], *arguments: object, path: str | None = None) -> None:
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of init's."""
    _call(_libc().prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    _call(_libc().prctl, _PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def unshare(flags: int) -> None:
    _call(_libc().unshare, flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    _call(
        _libc().mount,
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode(),
        path=target,
    )


def make_read_only(target: str) -> None:
    """Make a mount and everything mounted below it read-only."""
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    _call(
        _libc().syscall,
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
        path=target,
    )
