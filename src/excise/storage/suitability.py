"""Whether layers can lie on a file system, found by trying."""

import errno
import os
import stat
import tempfile
from pathlib import Path

from excise.errors import SubstrateError
from excise.storage.layers.tree import OPAQUE


def require_suitable(directory: Path) -> None:
    """Make in `directory` what a layer may need, a whiteout, an opaque mark and a hard link, or say why it will not do."""
    try:
        with tempfile.TemporaryDirectory(prefix=".trial-", dir=directory) as name:
            trial = Path(name)
            os.mknod(trial / "whiteout", stat.S_IFCHR | 0o600, os.makedev(0, 0))
            (trial / "file").touch()
            (trial / "link").hardlink_to(trial / "file")
            os.setxattr(trial, OPAQUE, b"y")
            os.removexattr(trial, OPAQUE)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SubstrateError(
                f"the disk of {directory} is full: free some space, or set EXCISE_HOME to a larger one"
            ) from None
        raise SubstrateError(
            f"layers cannot lie on {kind(directory)}, where {directory} is ({error.strerror}): set EXCISE_HOME to a "
            "directory on ext4, xfs, btrfs or tmpfs; in a container, to a volume"
        ) from None


def kind(path: Path) -> str:
    """The type of the file system that `path` is on."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0]
    return "this file system"
