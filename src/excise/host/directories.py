"""Removing a sandbox's directory, whatever its programs did to it."""

import contextlib
import os
import shutil


def remove(directory: str) -> None:
    """Remove `directory` and what is in it, as far as we may."""
    shutil.rmtree(directory, ignore_errors=True)
    if not os.path.isdir(directory):
        return
    # An ordinary user's program can take even its owner's rights away: they are given back, from the top down.
    for path, names, _ in os.walk(directory):
        for name in names:
            inside = os.path.join(path, name)
            # os.walk counts a link to a directory as one; what it leads to is not ours to change.
            if not os.path.islink(inside):
                with contextlib.suppress(OSError):
                    os.chmod(inside, 0o700)
    shutil.rmtree(directory, ignore_errors=True)
