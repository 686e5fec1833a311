"""The page cache, dropped: what a start costs when the image lies on this host's disk and nobody has read it lately."""

import os
from pathlib import Path

DROP = Path("/proc/sys/vm/drop_caches")


def refusal(drop: Path = DROP) -> str | None:
    """Why this process cannot drop the page cache, or None."""
    return None if os.access(drop, os.W_OK) else "state=cold drops the host's page cache, which root alone can do"


def drop_caches(drop: Path = DROP) -> None:
    """Write what is dirty to the disks, then forget pages, directory entries and inodes of the whole host."""
    os.sync()
    drop.write_text("3\n")
