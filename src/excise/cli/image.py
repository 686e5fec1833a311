"""`excise image`: the cache of root filesystems that sandboxes start from."""

import asyncio
import sys
from typing import Annotated

from cyclopts import App, Parameter

from excise.storage import image as images

app = App(
    name="image",
    help_epilogue="""\
Examples:
  excise image build
  excise image build ./rootfs.tar
  excise image list
  excise image rm excise/base""",
)


@app.command
def build(name: str = "excise/base", /, *, quiet: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> int:
    """Make an image ready: excise/base from Debian packages, or a root-filesystem tar.

    Parameters
    ----------
    name
        excise/base, host, or a tar file.
    quiet
        Say nothing until it is done.
    """

    def progress(line: str) -> None:
        if not quiet:
            sys.stderr.write(f"{line}\n")

    made = asyncio.run(images.build(name, progress))
    sys.stdout.write(_line(made) + "\n")
    return 0


@app.command(name="list")
def list_() -> int:
    """What the cache holds: name, digest, size."""
    lines = [_line(image) for image in images.list_images()]
    sys.stdout.write("\n".join(lines) + "\n" if lines else "the cache is empty; `excise image build` makes excise/base\n")
    return 0


@app.command
def rm(name: str, /) -> int:
    """Take an image out of the cache.

    Parameters
    ----------
    name
        A name or digest that `excise image list` shows.
    """
    for image in asyncio.run(images.remove(name)):
        sys.stdout.write(f"removed {_line(image)}\n")
    return 0


def _line(image: images.Image) -> str:
    return f"{image.name}  {image.digest[:19]}  {image.size_bytes / 2**20:.0f} MiB"
