"""A sandbox's root file system, mounted where only its keeper sees it.

The keeper's mount namespace is what makes it leave nothing behind: when the last process is gone, so are the mounts.
"""

import errno
import os
from pathlib import Path
from typing import Any

from excise.host.kernel import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    make_read_only,
    mount,
    unshare,
)

_MOST_LINKS = 40
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def enter_namespaces(inside: tuple[int, int]) -> bool:
    """A private mount namespace; for an ordinary user (True) in a user namespace, where its one uid and gid are `inside`."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        unshare(CLONE_NEWNS)
    else:
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{inside[0]} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{inside[1]} {gid} 1")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    return uid != 0


def build(directory: str, plan: dict[str, Any]) -> str:
    """Mount the root that `plan` describes below `directory` and return its path."""
    in_user_namespace = enter_namespaces((plan["uid"], plan["gid"]))
    size = "".join(
        f",{option}={plan[name]}"
        for name, option in (("disk_bytes", "size"), ("inodes", "nr_inodes"))
        if plan[name] is not None
    )
    mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0755{size}")
    root = _overlay(directory, plan["lower"], in_user_namespace=in_user_namespace)
    for source, inside in plan["binds"]:
        _show(source, led(root, inside))
    for name in _DEVICES:
        _device(f"/dev/{name}", led(root, f"/dev/{name}"))
    _terminals(led(root, "/dev"))
    for inside, mode in (("/tmp", 0o1777), ("/dev/shm", 0o1777), (plan["workdir"], 0o777)):
        path = led(root, inside)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
    return root


def build_layer(directory: str, plan: dict[str, Any]) -> str:
    """The image as a place that may be written to, for a runtime that shows it to its sandbox; the image itself never is."""
    in_user_namespace = enter_namespaces((0, 0))
    if plan["network"]:
        unshare(CLONE_NEWNET)
    layer = f"{directory}/layer"
    os.mkdir(layer, 0o700)
    mount("tmpfs", layer, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    root = _overlay(layer, plan["layer"], in_user_namespace=in_user_namespace)
    for inside, mode in plan["directories"]:
        path = led(root, inside)
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chmod(path, mode)
    return root


def _overlay(directory: str, lower: str, *, in_user_namespace: bool) -> str:
    """`lower` with a layer over it that is written to, at `directory`/root."""
    root, upper, work = (f"{directory}/{name}" for name in ("root", "upper", "work"))
    for path in (root, upper, work):
        os.mkdir(path)
    options = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    mount("overlay", root, "overlay", 0, f"{options},userxattr" if in_user_namespace else options)
    return root


def led(root: str, path: str) -> str:
    """Where `path` leads for a process whose / is `root`. We are not one yet, and an image's links could lead us out."""
    ahead = path.split("/")[::-1]
    found: list[str] = []
    links = 0
    while ahead:
        name = ahead.pop()
        here = "/".join((root, *found, name))
        if name == "..":
            del found[-1:]
        elif os.path.islink(here):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(here)
            if target.startswith("/"):
                found.clear()
            ahead += target.split("/")[::-1]
        elif name not in ("", "."):
            found.append(name)
    return "/".join((root, *found))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _show(source: str, target: str) -> None:
    """A host directory, read-only."""
    os.makedirs(target, exist_ok=True)
    mount(source, target, None, MS_BIND | MS_REC)
    make_read_only(target)


def _terminals(devices: str) -> None:
    """The sandbox's own, for who opens them inside."""
    path = f"{devices}/pts"
    multiplexer = f"{devices}/ptmx"
    for name in (path, multiplexer):
        if os.path.islink(name) or (os.path.exists(name) and not os.path.isdir(name)):
            os.unlink(name)
    os.makedirs(path, exist_ok=True)
    mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.symlink("pts/ptmx", multiplexer)


def _device(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    Path(target).touch()
    mount(source, target, None, MS_BIND)
