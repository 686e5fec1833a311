"""Small repositories that are made the same way everywhere: half of them have siblings, commits that a task each begins at.

Their commits have the same hashes on every machine, which is checked when they are built.
"""

import fcntl
import hashlib
import random
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.workloads.git import data, git

LOCK_FILE = "requirements.lock"
PACKAGES = ("html", "http", "json", "urllib", "wsgiref", "xmlrpc")
"""Of Python's own library, copied and compiled as an installer does: `INSTALLED` of them, by repository."""
INSTALLED = 3
COMMITS = 3
"""Of a repository that has siblings; the others have one."""
FILES = 40
CHANGED = 5
"""Files that a commit changes of the one before."""
_LINES = 60
_WHO = "Excise <mixed@excise.invalid>"
_FIRST_COMMIT_AT = 1767225600
"""2026-01-01. Commits are an hour apart."""
_KNOWN = "612cfe7b5ef4711400100966a219927403c2f536"
"""The last commit of the first repository: it is the same on every machine, or other work would be done there."""


class Commit(msgspec.Struct, frozen=True):
    """One state of a repository, and what running it must say."""

    repository: int
    number: int
    lock: str
    """What its lock file holds."""
    total: int
    """The sum that `main.py` prints at this commit, and at no other."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.lock.encode()).hexdigest()


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """Bare repositories below `place`, r000.git and so on, and each commit's hash."""

    place: Path
    heads: dict[str, str]
    """By `r000.0`: repository and commit."""


def name_of(repository: int) -> str:
    return f"r{repository:03}"


def history(repository: int) -> list[Commit]:
    """The commits of one repository: three if its number is even, else one.

    Siblings have one lock file, but for the last of every fifth repository, which wants other versions than those before it.
    """
    commits = 1 if repository % 2 else COMMITS
    drawn = random.Random(f"mixed:{repository}")  # noqa: S311 - text, not secrets
    names = sorted(drawn.sample(PACKAGES, INSTALLED))
    found: list[Commit] = []
    for number in range(commits):
        moved = number == COMMITS - 1 and repository % 10 == 0
        lock = "".join(f"{name} {repository}.{int(moved)}\n" for name in names)
        found.append(Commit(repository, number, lock, sum(_values(repository, number))))
    return found


def _values(repository: int, commit: int) -> list[int]:
    """What each file holds at this commit: a commit changes a few."""
    values = [repository * 1000 + index for index in range(FILES)]
    for number in range(1, commit + 1):
        for index in range(CHANGED):
            values[(number * CHANGED + index) % FILES] += 1_000_000 * number
    return values


def _files(commit: Commit) -> Iterator[tuple[str, bytes]]:
    """The whole tree at this commit, as text that does not compress to nothing."""
    for index, value in enumerate(_values(commit.repository, commit.number)):
        drawn = random.Random(f"mixed:{commit.repository}:{index}")  # noqa: S311 - as above
        lines = (f"# {drawn.getrandbits(160):040x}" for _ in range(_LINES))
        yield f"project/part_{index:02}.py", "\n".join((*lines, f"VALUE = {value}", "")).encode()
    yield "project/__init__.py", b""
    yield LOCK_FILE, commit.lock.encode()
    yield "main.py", _MAIN.encode()


_MAIN = '''"""Adds up what the parts hold, and says which version of its dependencies it found."""
import json, pathlib, re, sys
total = 0
for part in sorted(pathlib.Path("project").glob("part_*.py")):
    total += int(re.search(r"^VALUE = (\\d+)$", part.read_text(), re.MULTILINE)[1])
print(json.dumps([total, pathlib.Path(sys.argv[1]).read_text().strip(), sys.argv[2]]))
'''


def built(repositories: int, cache: Path) -> Built:
    """The repositories in `cache`, built if they are not there. Blocks; two processes build them once."""
    key = hashlib.sha256(Path(__file__).read_bytes() + b"%d" % repositories).hexdigest()[:16]
    place = cache / "mixed" / key
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(place.parent / "lock"):
        if not place.is_dir():
            for cut_off in place.parent.glob(".making-*"):  # whoever made it is dead: the lock is ours
                shutil.rmtree(cut_off, ignore_errors=True)
            making = Path(tempfile.mkdtemp(prefix=".making-", dir=place.parent))
            try:
                _build(making, repositories)
                making.rename(place)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
    return Built(place=place, heads=msgspec.json.decode((place / "heads.json").read_bytes(), type=dict[str, str]))


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed, or its holder dies
        yield


def _build(place: Path, repositories: int) -> None:
    heads: dict[str, str] = {}
    for number in range(repositories):
        bare = place / f"{name_of(number)}.git"
        commits = history(number)
        git(place, "init", "-q", "--bare", "--object-format=sha1", "--template=", "-b", "main", str(bare))
        git(bare, "config", "uploadpack.allowAnySHA1InWant", "true")
        stream = b"".join(line for commit in commits for line in _imported(commit))
        git(bare, "-c", "fastimport.unpackLimit=1", "fast-import", "--quiet", input=stream)
        shas = git(bare, "rev-list", "--reverse", "main").decode().split()
        heads |= {f"{name_of(number)}.{commit.number}": sha for commit, sha in zip(commits, shas, strict=True)}
    if heads["r000.2"] != _KNOWN:
        raise SpecError(f"the repositories came out as {heads['r000.2']}, not {_KNOWN}; report it, with `git --version`")
    (place / "heads.json").write_bytes(msgspec.json.encode(heads))


def _imported(commit: Commit) -> Iterator[bytes]:
    """One commit as `git fast-import` reads it: no work tree, no filters and nobody's configuration are in the way."""
    at = f"{_WHO} {_FIRST_COMMIT_AT + 3600 * commit.number} +0000"
    yield f"commit refs/heads/main\nauthor {at}\ncommitter {at}\n".encode()
    yield data(f"State {commit.number}\n".encode())
    for path, content in _files(commit):
        yield f"M 100644 inline {path}\n".encode()
        yield data(content)
