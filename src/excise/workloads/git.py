"""git as repositories are built with it: by no setting of whoever runs it, so that they come out the same everywhere."""

import os
import subprocess
from pathlib import Path

from excise.errors import SpecError

_TIMEOUT_S = 60.0


def git(place: Path, *words: str, input: bytes = b"") -> bytes:
    """What it prints, run in `place`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *words], input=input, env=env, capture_output=True, check=False, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise SpecError("a workload's repositories are built with git, which is not installed; install git") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise SpecError(f"git {words[0]} failed on a workload's repository: {said}")
    return done.stdout


def data(content: bytes) -> bytes:
    """A piece of a stream for `git fast-import`."""
    return b"data %d\n%s\n" % (len(content), content)
