"""`excise image`: the cache of root filesystems that sandboxes start from."""

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from excise.errors import SpecError
from excise.storage import image as images

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

app = App(
    name="image",
    help_epilogue="""\
Examples:
  excise image build
  excise image build ./rootfs.tar
  excise image pull python:3.12 registry.example/name:tag
  excise image pull -f images.txt -j 8 --keep 200G
  excise image list
  excise image rm excise/base
  excise image gc --keep 50G""",
)


@app.command
def build(name: str = "excise/base", /, *, quiet: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> int:
    """Make an image ready: excise/base or excise/machine from Debian packages, a root-filesystem tar, or an image archive.

    Parameters
    ----------
    name
        excise/base, excise/machine (what virtual machines boot), host, a tar file, or the directory of an OCI layout.
    quiet
        Say nothing until it is done.
    """

    def progress(line: str) -> None:
        if not quiet:
            sys.stderr.write(f"{line}\n")

    made = asyncio.run(images.build(name, progress))
    sys.stdout.write(_line(made) + "\n")
    return 0


@app.command
def pull(
    *names: str,
    file: Annotated[Path | None, Parameter(name=["--file", "-f"])] = None,
    jobs: Annotated[int, Parameter(name=["--jobs", "-j"])] = 4,
    keep: str | None = None,
    stall: float = 30.0,
) -> int:
    """Bring images here from their registries; what is here already does not come again.

    Parameters
    ----------
    names
        As Docker writes them: [host[:port]/]name[:tag][@digest]. Credentials are those of `docker login`.
    file
        A file with a name on each line; # begins a comment.
    jobs
        How many layers come at once.
    keep
        The most that all layers may take, 200G say: images used least recently make room, but none in use.
    stall
        Seconds a registry may say nothing.
    """
    from excise.cli.pulling import show  # noqa: PLC0415 - the other commands need no progress

    wanted = [*names, *(_listed(file) if file else ())]
    if not wanted:
        raise SpecError("name an image to pull, or a file of names with -f")
    if jobs < 1:
        raise SpecError(f"-j {jobs}: at least one layer must come at a time")
    return asyncio.run(show(wanted, jobs=jobs, keep_bytes=None if keep is None else parse_size(keep), stall_s=stall))


@app.command(name="list")
def list_() -> int:
    """What the cache holds: name, digest, size, how much of it other images share, when it was used last."""
    from excise.storage.listing import listed  # noqa: PLC0415 - as above

    rows = [
        (name, one.digest[:19], show_size(one.size_bytes), f"{show_size(one.shared_bytes)} shared", _ago(one.used_s))
        for one in listed()
        for name in one.names
    ]
    sys.stdout.write(_table(rows) if rows else "the cache is empty; `excise image build` makes excise/base\n")
    return 0


@app.command
def rm(name: str, /) -> int:
    """Take an image out of the cache, and the layers no other has.

    Parameters
    ----------
    name
        A name or digest that `excise image list` shows.
    """
    for image in asyncio.run(images.remove(name)):
        sys.stdout.write(f"removed {_line(image)}\n")
    return 0


@app.command
def gc(*, keep: str | None = None) -> int:
    """Remove what nothing needs: layers without an image, images without a name, what killed processes left.

    Parameters
    ----------
    keep
        The most that all layers may take: images used least recently go too, but none in use.
    """
    from excise.storage.collect import tidy  # noqa: PLC0415 - as above

    gone = asyncio.run(tidy(None if keep is None else parse_size(keep)))
    what = f"{len(gone.images)} images, {len(gone.layers)} layers, {gone.leftovers} leftovers"
    sys.stdout.write(f"removed {what}: {show_size(gone.size_bytes)}\n")
    return 0


@app.command
def verify() -> int:
    """Look through every layer for what is not as it was unpacked, and name it."""
    from excise.storage.collect import corrupted  # noqa: PLC0415 - as above

    count, found = asyncio.run(corrupted())
    for line in found:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"{count} layers, {len(found)} corrupted\n")
    return 1 if found else 0


def parse_size(text: str) -> int:
    """200G, 1.5T, 512MiB as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise SpecError(f"--keep {text!r}: write a size as 200G or 512M")
    return int(float(found[1]) * _SIZES[found[2]])


def show_size(size_bytes: int) -> str:
    """A size for people."""
    if size_bytes >= 10 << 30:
        return f"{size_bytes / 2**30:.0f} GiB"
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / 2**20:.0f} MiB"


def _listed(file: Path) -> list[str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def _ago(used_s: float) -> str:
    days = int((time.time() - used_s) / 86400)
    return "today" if days <= 0 else "yesterday" if days == 1 else f"{days} days ago"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def _line(image: images.Image) -> str:
    return f"{image.name}  {image.digest[:19]}  {image.size_bytes / 2**20:.0f} MiB"
