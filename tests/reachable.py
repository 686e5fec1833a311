"""What a test made in its own directory, shown to other users: pytest closes the directories above it."""

import stat
from pathlib import Path

_ENTER = stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH


def reachable(path: Path) -> None:
    """Let everybody enter `path` and what it lies in; what everybody may enter already is left as it is."""
    for place in (path, *path.parents):
        mode = place.stat().st_mode
        if mode & _ENTER != _ENTER:
            place.chmod(stat.S_IMODE(mode) | _ENTER)
