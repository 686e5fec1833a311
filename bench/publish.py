"""A finished run as the results that the README is about: compressed, with page, figures and the README's table.

    python bench/publish.py RUN [DIRECTORY]       to docs/results/paper if none is named; `make results RUN=...` does it

It fails if anything in the bundle names this machine, its user or a path of theirs.
"""

import getpass
import gzip
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from excise.meter.packed import pack
from excise.report.bundle import write
from excise.report.sources import read

ROOT = Path(__file__).parents[1]
PAPER = "docs/results/paper"
PIXELS = frozenset({"share.png", "decomposition.png", "ladder.png", "worker-hours.png"})
"""The others are there as SVG alone."""


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    run, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) == 3 else PAPER)
    os.chdir(ROOT)  # So that the page names the results as a reader of the repository does.
    pack(run, out)
    print(write(out / "report", *read([out])).replace("\N{NO-BREAK SPACE}", " "))
    for file in out.rglob("*.png"):
        if file.name not in PIXELS:
            file.unlink()
    found = sorted(names(out))
    if found:
        print(f"not to be given away: {'; '.join(found)}")
        return 1
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 2**20:.1f} MiB")
    if out.is_absolute():
        return 0  # a trial somewhere else: the README names results of the repository alone
    return subprocess.run([sys.executable, "bench/readme_table.py", str(out)], check=False).returncode


def names(out: Path) -> Iterator[str]:
    """Which file names what of this machine."""
    # A host or a user that is called like an ordinary word, as `vm` or `root` are, would be found everywhere.
    called = {name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4}
    private = {str(Path.home()) + "/", str(ROOT), sys.prefix, *called}
    for file in out.rglob("*"):
        if file.is_file() and file.suffix != ".png":
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            yield from (f"{file} has {word!r}" for word in private if word.encode() in data)


if __name__ == "__main__":
    sys.exit(main())
