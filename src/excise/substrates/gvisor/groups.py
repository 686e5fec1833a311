"""The control group by which the host gives a sandbox less processor time: made by runsc, removed by us.

runsc removes its own when it ends in order, which a killed one does not.
"""

import contextlib
import os
import re
import time
from pathlib import Path

from excise.host.sandboxes import owner_of

_TOP = Path("/sys/fs/cgroup")
_NAMED = re.compile(r"gvisor-((\d+)-\d+)-[0-9a-f]{12}")
_PATIENCE_S = 2.0
_PAUSE_S = 0.01


def name(sandbox: str) -> str:
    """The group of the sandbox whose directory is called so."""
    return f"/{sandbox}"


def found() -> bool:
    """Whether processor time can be limited here: by trying, as nothing else tells."""
    trial = f"excise-trial-{os.getpid()}-{os.urandom(6).hex()}"
    for top in (_TOP / "cpu", _TOP):
        quota = "cpu.cfs_quota_us" if top.name == "cpu" else "cpu.max"
        try:
            (top / trial).mkdir()
        except OSError:
            continue
        try:
            return os.access(top / trial / quota, os.W_OK)
        finally:
            (top / trial).rmdir()
    return False


def remove(group: str) -> None:
    """In every hierarchy. Its processes have been killed; the kernel may take a moment to forget them."""
    leaf = group.lstrip("/")
    for place in (*_TOP.glob(f"*/{leaf}"), _TOP / leaf):
        until_s = time.monotonic() + _PATIENCE_S
        while place.is_dir() and time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(_PAUSE_S)


def collect() -> None:
    """Those of owners that are gone."""
    names = {place.name for pattern in ("*", "*/*") for place in _TOP.glob(f"{pattern}gvisor-*")}
    for leaf in sorted(names):
        named = _NAMED.fullmatch(leaf)
        if named is not None and named[1] != owner_of(int(named[2])):
            remove(leaf)
