"""File actions, carried out inside the sandbox's root so that its links lead where they lead inside."""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from typing import Any

from excise.host.runner import Place, answer

_CHUNK_BYTES = 1 << 20


def run(place: Place, request: dict[str, Any], reply: socket.socket, streams: list[int]) -> None:
    """Do one file action: data comes from streams[0], what is read goes to streams[1]."""
    began_ns = time.monotonic_ns()
    _die_when_told(reply)
    try:
        place.enter(None, request["user"])
        files = _WORK[request["op"]](request, streams)
    except OSError as error:
        outcome: dict[str, Any] = {"errno": error.errno}
    except LookupError:
        outcome = {"errno": errno.ENOENT}
    except ValueError:  # a NUL byte in the name
        outcome = {"errno": errno.EINVAL}
    else:
        outcome = {"code": 0, "files": files}
    answer(reply, {**outcome, "guest_ns": time.monotonic_ns() - began_ns})


def _die_when_told(reply: socket.socket) -> None:
    """Whatever the client says while we work, or its going, ends us: a FIFO or a full pipe can hold us for ever."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(reply, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reply, fcntl.F_SETFL, fcntl.fcntl(reply, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(reply, select.POLLIN)
    if poll.poll(0):  # it came before we asked for the signal
        os._exit(1)


def _read(request: dict[str, Any], streams: list[int]) -> None:
    left = request["length"]
    with open(request["path"], "rb", buffering=0) as file:
        file.seek(request["offset"])
        while left is None or left > 0:
            data = file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not data:
                return
            left = None if left is None else left - len(data)
            _write_all(streams[1], data)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write(request: dict[str, Any], streams: list[int]) -> None:
    path = request["path"]
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except FileExistsError as error:
        # What is in the way of a parent directory is a file.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if request["append"] else os.O_TRUNC)
    descriptor = os.open(path, flags, 0o644)
    try:
        while data := os.read(streams[0], _CHUNK_BYTES):
            _write_all(descriptor, data)
        if request["mode"] is not None:
            os.fchmod(descriptor, request["mode"])
    finally:
        os.close(descriptor)


def _list(request: dict[str, Any], _: list[int]) -> list[dict[str, Any]]:
    path: str = request["path"]
    found: list[dict[str, Any]] = []
    for name in sorted(os.listdir(path)):
        with contextlib.suppress(FileNotFoundError):  # removed since
            found.append(_info(os.path.join(path, name), name))
    return found


def _stat(request: dict[str, Any], _: list[int]) -> list[dict[str, Any]]:
    path = request["path"]
    return [_info(path, os.path.basename(path.rstrip("/")) or path)]


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "link"),
)


def _info(path: str, name: str) -> dict[str, Any]:
    seen = os.lstat(path)
    kind = next((kind for test, kind in _KINDS if test(seen.st_mode)), "other")
    return {
        "name": name,
        "kind": kind,
        "size_bytes": seen.st_size,
        "mode": stat.S_IMODE(seen.st_mode),
        "mtime_ns": seen.st_mtime_ns,
        "uid": seen.st_uid,
        "gid": seen.st_gid,
        "target": os.readlink(path) if kind == "link" else None,
    }


def _remove(request: dict[str, Any], _: list[int]) -> None:
    path = request["path"]
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif request["recursive"]:
        shutil.rmtree(path)
    else:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _move(request: dict[str, Any], _: list[int]) -> None:
    os.replace(request["path"], request["target"])


def _make_dir(request: dict[str, Any], _: list[int]) -> None:
    os.makedirs(request["path"], request["mode"], exist_ok=True)


_WORK: dict[str, Callable[[dict[str, Any], list[int]], list[dict[str, Any]] | None]] = {
    "read": _read,
    "write": _write,
    "list": _list,
    "stat": _stat,
    "remove": _remove,
    "move": _move,
    "make_dir": _make_dir,
}
