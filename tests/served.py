"""A real `excise serve`, in a process of its own, for tests."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

EXCISE = str(Path(sys.executable).parent / "excise")
_LIMIT_S = 60.0


class Served(msgspec.Struct):
    """One that answers."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    key: str
    """Its own, where it was given none."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(_LIMIT_S)


@contextmanager
def serving(place: Path, *words: str, env: Mapping[str, str] | None = None, address: str = "namespace") -> Generator[Served]:
    """`words`: options of the command. What it holds is closed with it, however the block ends."""
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"log-{time.monotonic_ns()}"
    listen = () if "--listen" in words else ("--listen", "127.0.0.1:0")
    with log.open("w") as told:
        process = subprocess.Popen(
            [EXCISE, "serve", address, *listen, "--state", str(place), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env={**os.environ, **(env or {})},
        )
    try:
        url = _first_line(process, log)
        yield Served(process, url, log, "" if "--keys" in words else _own_key(url))
    finally:
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGTERM)  # no drain: at once
            process.wait(_LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def _first_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _LIMIT_S)
    line = process.stdout.readline().strip() if ready else ""
    assert line, log.read_text()
    return line


def _own_key(url: str) -> str:
    from excise.substrates.remote.where import key_for, where  # after XDG_RUNTIME_DIR is the tests' own

    return key_for(where(url)) or ""


def keys(path: Path, *names: str, **caps: int | float) -> dict[str, str]:
    """A file of new keys, and they themselves by name."""
    words = [word for name, value in caps.items() for word in (f"--{name}", str(value))]
    return {
        name: subprocess.run(
            [EXCISE, "serve", "key", "add", name, "--keys", str(path), *words], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    }
