"""The seed repository: a real project with one real bug, the test that shows it, and the fix as a patch.

It is made from the project's releases on the package index, so that nothing of it is in ours, and made the same way
everywhere: the commit it ends in has the same hash on every machine, which is checked each time it is built.
"""

import fcntl
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.workloads.git import data, git
from excise.workloads.index import Archive, Settings, fetch, settings
from excise.workloads.lift import add_method, patch, replace_function

BUNDLE, PATCH, BARE = "seed.bundle", "fix.patch", "repository.git"
_WHO = "Excise <seed@excise.invalid>"
_FIRST_COMMIT_AT = 1767225600
"""2026-01-01. Commits are an hour apart."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Which bug, and where it lies."""

    name: str
    buggy: Archive
    fixed: Archive
    source: str
    """The file with the bug."""
    function: str
    """What is wrong in it."""
    test_file: str
    test: str
    """Class.method of the test that fails with the bug."""
    tests: int = 1
    """How many cases the test has."""
    head: str
    """The commit everything starts at: the buggy release with the failing test."""


RECIPES: Mapping[str, Recipe] = {
    "a": Recipe(
        name="a",
        buggy=Archive("attrs", "25.4.0", "16d5969b87f0859ef33a48b35d55ac1be6e42ae49d5e853b597db70c35c57e11"),
        fixed=Archive("attrs", "26.1.0", "d03ceb89cb322a8fd706d4fb91940737b6642aa36998fe130a9bc96c985eff32"),
        source="src/attr/validators.py",
        function="disabled",
        test_file="tests/test_validators.py",
        test="TestDisableValidators.test_disabled_ctx_nested",
        head="cea093a18ddb55f5a3167292bed063fb4a25cbbd",
    ),
    "b": Recipe(
        name="b",
        buggy=Archive("attrs", "25.3.0", "75d7cefc7fb576747b2c81b4442d4d4a1ce0900973527c011d1030fd3bf4af1b"),
        fixed=Archive("attrs", "25.4.0", "16d5969b87f0859ef33a48b35d55ac1be6e42ae49d5e853b597db70c35c57e11"),
        source="src/attr/_make.py",
        function="_attrs_to_init_script",
        test_file="tests/test_make.py",
        test="TestAttributes.test_pre_init_with_mixture_of_defaults_and_kw_only",
        tests=2,
        head="ff298531e7da9d260c4d801398db85c2d436fec6",
    ),
}
"""a: nested `validators.disabled()`, quick to test. b: `__attrs_pre_init__` with defaults; its test file needs hypothesis."""


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """A built seed repository, as files on this machine."""

    recipe: Recipe
    place: Path

    def bundle(self) -> bytes:
        """The repository as one file that can be cloned."""
        return (self.place / BUNDLE).read_bytes()

    def patch(self) -> bytes:
        """The fix."""
        return (self.place / PATCH).read_bytes()

    @property
    def served(self) -> Path:
        """The repository as a directory that any HTTP server can hand out."""
        return self.place / BARE


def built(recipe: Recipe, cache: Path, asked: Callable[[], Settings] = settings) -> Seed:
    """The seed repository in `cache`, built if it is not there. Blocks; two processes build it once."""
    seed = Seed(recipe=recipe, place=cache / "seeds" / f"{recipe.name}-{recipe.head}")
    if seed.place.is_dir():
        return seed
    seed.place.parent.mkdir(mode=0o700, exist_ok=True)
    with _locked(seed.place.parent / "lock"):
        if not seed.place.is_dir():
            for cut_off in seed.place.parent.glob(".making-*"):  # whoever made it is dead: the lock is ours
                shutil.rmtree(cut_off, ignore_errors=True)
            making = Path(tempfile.mkdtemp(prefix=".making-", dir=seed.place.parent))
            try:
                _build(recipe, making, asked())
                making.rename(seed.place)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
    return seed


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed, or its holder dies
        yield


def _build(recipe: Recipe, place: Path, where: Settings) -> None:
    released, fixed = (_files(archive, fetch(archive, where)) for archive in (recipe.buggy, recipe.fixed))
    source, test_file = released[recipe.source][1].decode(), released[recipe.test_file][1].decode()
    with_test = add_method(test_file, fixed[recipe.test_file][1].decode(), recipe.test)
    repaired = replace_function(source, fixed[recipe.source][1].decode(), recipe.function)
    (place / PATCH).write_bytes(patch(recipe.source, source, repaired))
    bare = place / BARE
    git(place, "init", "-q", "--bare", "--object-format=sha1", "--template=", "-b", "main", str(bare))
    test = {recipe.test_file: (released[recipe.test_file][0], with_test.encode())}
    history = (
        *_commit(f"{recipe.buggy.project} {recipe.buggy.version} as it was released", released, 0),
        *_commit(f"A test for {recipe.function}, which fails", test, 1),
    )
    git(bare, "fast-import", "--quiet", input=b"".join(history))
    git(bare, "repack", "-q", "-a", "-d")
    git(bare, "update-server-info")
    git(bare, "bundle", "create", "-q", str(place / BUNDLE), "HEAD", "main")
    head = git(bare, "rev-parse", "main").decode().strip()
    if head != recipe.head:
        raise SpecError(f"the seed repository came out as {head}, not {recipe.head}; report it, with `git --version`")


def _files(archive: Archive, data: bytes) -> dict[str, tuple[str, bytes]]:
    """Path in the repository to git's mode and content, of the regular files of a source archive."""
    files: dict[str, tuple[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            _, _, path = entry.name.partition("/")  # below a directory that is named for the release
            if content is not None and path:
                files[path] = ("100755" if entry.mode & 0o100 else "100644", content.read())
    return files


def _commit(message: str, files: Mapping[str, tuple[str, bytes]], number: int) -> Iterator[bytes]:
    """One commit as `git fast-import` reads it: no work tree, no filters and nobody's configuration are in the way."""
    at = f"{_WHO} {_FIRST_COMMIT_AT + 3600 * number} +0000"
    yield f"commit refs/heads/main\nauthor {at}\ncommitter {at}\n".encode()
    yield data(message.encode() + b"\n")
    for path, (mode, content) in sorted(files.items()):
        yield f"M {mode} inline {path}\n".encode()
        yield data(content)
