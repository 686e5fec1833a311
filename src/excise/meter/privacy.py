"""Results are there to be given away: nobody's home directory is named in them."""

import re
from pathlib import Path

from excise.errors import ExciseError


def without_home(text: str) -> str:
    """`text` with `~` for the user's home directory, where that is a whole name: /root is not the beginning of /rootfs."""
    home = str(Path.home())
    if len(home) < 2:  # some services live in /
        return text
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)


def one_line(error: Exception) -> str:
    """An error of ours speaks for itself; of another, its name is half of what it says."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ExciseError) else f"{type(error).__name__}: {text}"
