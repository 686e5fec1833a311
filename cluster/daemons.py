"""Starting a part and knowing when it is ready, without asking it again and again: it tells, as it would tell systemd."""

import hashlib
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from cluster import groups
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import Places
from cluster.records import Record

READY_S = 90.0
_STOP_S = 20.0
_LOG_LINES = 15
_SPAWN = 'log=$0 group=$1; shift; echo $$ >"$group/cgroup.procs" && { "$@" >>"$log" 2>&1 </dev/null & echo $!; }'


def settings_digest(part: Part) -> str:
    """What the part was started with: its command line, and the files it reads."""
    digest = hashlib.sha256("\0".join(part.command).encode())
    for path in part.reads:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure(part: Part, places: Places) -> bool:
    """The part runs, with the settings of now: started if it does not, anew if it has others. Whether it was started."""
    path = places.records / f"{part.name}.json"
    record = Record.read(path)
    digest = settings_digest(part)
    if record is not None and record.runs():
        if record.settings == digest:
            return False
        record.stop(_STOP_S)
    began = time.monotonic()
    _start(part, places, path, digest)
    print(f"{part.name:<24} started in {time.monotonic() - began:.1f} s", flush=True)
    return True


def stop(name: str, places: Places, patience_s: float) -> None:
    """End the part of that name, if it is ours and runs."""
    path = places.records / f"{name}.json"
    record = Record.read(path)
    if record is not None:
        record.stop(patience_s)
    path.unlink(missing_ok=True)


def _start(part: Part, places: Places, path: Path, digest: str) -> None:
    places.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = places.logs / f"{part.name}.log"
    with tempfile.TemporaryDirectory(prefix="excise-ready-") as directory, _Told(f"{directory}/socket") as told:
        pid = _spawn(part, log, {"NOTIFY_SOCKET": f"{directory}/socket"} if part.tells else {})
        try:
            end = os.pidfd_open(pid)
            record = Record.of(pid, digest)
        except ProcessLookupError:
            raise _failed(part.name, "ended", log) from None
        record.write(path)
        try:
            if part.tells and (why := told.wait(end)) is not None:
                stop(part.name, places, 0.0)  # else it would be taken for one that is ready
                raise _failed(part.name, why, log)
        finally:
            os.close(end)


def _spawn(part: Part, log: Path, env: dict[str, str]) -> int:
    """The pid of a process that is nobody's child, in our control group from its first moment, with its output in `log`."""
    started = subprocess.run(
        ["sh", "-c", _SPAWN, str(log), str(groups.parts()), *part.command],
        env={**os.environ, **env},
        cwd="/",
        start_new_session=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(started.stdout)


class _Told:
    """Where a daemon tells that it is ready."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)

    def __enter__(self) -> "_Told":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def wait(self, end: int) -> str | None:
        """Until it says READY=1; why not, if it ends instead (`end` is its descriptor) or says nothing for too long."""
        until = time.monotonic() + READY_S
        while True:
            ready, _, _ = select.select([self._socket, end], [], [], max(0.0, until - time.monotonic()))
            if self._socket not in ready:
                return "ended" if ready else f"did not get ready in {READY_S:.0f} s"
            if b"READY=1" in self._socket.recv(4096):
                return None


def check(names: Iterable[str], places: Places) -> None:
    """Each of these parts still runs: one that does not tell may have ended right after it was started."""
    for name in names:
        record = Record.read(places.records / f"{name}.json")
        if record is None or not record.runs():
            raise _failed(name, "ended", places.logs / f"{name}.log")


def _failed(name: str, what: str, log: Path) -> ClusterError:
    end = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return ClusterError(f"{name} {what}; the end of {log} is:\n{end}")
