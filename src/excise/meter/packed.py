"""A run to give away: its header, and its trials compressed, in parts that are small enough for any host of code."""

import gzip
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from excise.errors import SpecError

HEADER, TRIALS, WHOLE = "run.json", "trials.jsonl", "trials.jsonl.gz"
PART_BYTES = 8 << 20
"""Of lines in a part, which compressed are about a seventh of that."""

_PART = re.compile(r"trials-(\d+)-of-(\d+)\.jsonl\.gz")


def packed_files(path: Path) -> list[Path]:
    """The compressed trials of a bundle in their order; empty if there are none, a SpecError if one is missing."""
    if (path / WHOLE).exists():
        return [path / WHOLE]
    found = sorted((int(m[1]), int(m[2]), file) for file in _entries(path) if (m := _PART.fullmatch(file.name)))
    count = found[-1][1] if found else 0
    if [(number, of) for number, of, _ in found] != [(number, count) for number in range(1, count + 1)]:
        raise SpecError(f"{path} has {len(found)} parts of trials and not the {count} that they name: fetch it again")
    return [file for _, _, file in found]


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def lines(path: Path) -> Iterator[bytes]:
    """Every line of a run's trials, packed or not; a last line that was cut off is left out."""
    raw = (path / TRIALS).exists()
    for file in [path / TRIALS] if raw else packed_files(path):
        with file.open("rb") if raw else gzip.open(file) as opened:
            yield from (line for line in opened if line.endswith(b"\n"))


def pack(path: Path, out: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write the bundle of the run in `path` to `out`, whole or not at all, in place of an earlier one; returns its files."""
    _refuse_others(out)
    if not (path / TRIALS).exists() and not packed_files(path):
        raise SpecError(f"{path} is not a results directory: it has no {TRIALS}")
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        place.chmod(0o755)
        shutil.copyfile(path / HEADER, place / HEADER)
        count = 0
        for count, part in enumerate(_cut(lines(path), part_bytes), 1):
            # Neither a time nor a name in it: the same run is the same bundle.
            (place / str(count)).write_bytes(gzip.compress(part, 9, mtime=0))
        for number in range(1, count + 1):
            name = WHOLE if count == 1 else f"trials-{number:02}-of-{count:02}.jsonl.gz"
            (place / str(number)).rename(place / name)
        if out.exists():
            shutil.rmtree(out)
        place.rename(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return sorted(out.iterdir())


def _cut(found: Iterator[bytes], part_bytes: int) -> Iterator[bytes]:
    part = bytearray()
    for line in found:
        if part and len(part) + len(line) > part_bytes:
            yield bytes(part)
            part.clear()
        part += line
    yield bytes(part)


def _refuse_others(out: Path) -> None:
    ours = {HEADER, WHOLE, "report"}
    if out.exists() and (not out.is_dir() or any(e.name not in ours and not _PART.fullmatch(e.name) for e in out.iterdir())):
        raise SpecError(f"{out} holds something else than a bundle: name another directory with --pack")
