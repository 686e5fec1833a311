"""Starting a part and knowing when it is ready, without asking it again and again: it tells, as it would tell systemd."""

import hashlib
import os
import select
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from cluster import groups
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import Places
from cluster.records import Record

READY_S = 90.0
_STOP_S = 20.0
_LOG_LINES = 15


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
    with (
        tempfile.TemporaryDirectory(prefix="excise-ready-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told,
    ):
        told.bind(f"{directory}/socket")
        env = {**os.environ, "NOTIFY_SOCKET": f"{directory}/socket"} if part.tells else dict(os.environ)
        with log.open("ab") as output:
            process = subprocess.Popen(
                part.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd="/", start_new_session=True
            )
        groups.enter(process.pid)
        Record.of(process.pid, digest).write(path)
        if part.tells:
            _wait(part, process, told, log)
    process.returncode = 0  # it outlives this program: nobody is to wait for it, nor to warn that nobody did


def _wait(part: Part, process: "subprocess.Popen[bytes]", told: socket.socket, log: Path) -> None:
    """Until it says READY=1; an error if it ends instead, or says nothing for too long."""
    end = os.pidfd_open(process.pid)
    until = time.monotonic() + READY_S
    try:
        while True:
            ready, _, _ = select.select([told, end], [], [], max(0.0, until - time.monotonic()))
            if told in ready:
                if b"READY=1" in told.recv(4096):
                    return
            else:
                what = "ended" if ready else f"did not get ready in {READY_S:.0f} s"
                raise ClusterError(f"{part.name} {what}; the end of {log} is:\n{_tail(log)}")
    finally:
        os.close(end)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
