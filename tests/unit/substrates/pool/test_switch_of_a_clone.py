"""From a clone of one commit to a clone of another: the same files as a fresh one has, and nothing of the commit before."""

import os
import stat
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from excise.action import Shell
from excise.spec import Spec

FORMER = b"FORMER-ANSWER"
"""In every blob, name and message that the former commit alone has."""


class Repository:
    """Commits to be cloned, and clones of them as a spec's step makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir()
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "HOME": str(root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_{what}": f"{what}@x.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.git(self.source, "init", "-q", ".")
        self.git(self.source, "config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, where: Path, *argv: str) -> str:
        done = subprocess.run(["git", *argv], cwd=where, env=self._env, capture_output=True, check=True)
        return done.stdout.decode(errors="surrogateescape").strip()

    def commit(self, message: str) -> str:
        self.git(self.source, "add", "-A", "-f", ".")
        self.git(self.source, "commit", "-q", "--allow-empty", "-m", message)
        return self.git(self.source, "rev-parse", "HEAD")

    def clone(self, name: str, commit: str) -> Path:
        where = self.root / name
        where.mkdir()
        done = self._act(where, commit, switch=False)
        assert done.returncode == 0, done.stderr
        return where

    def switch(self, where: Path, commit: str) -> subprocess.CompletedProcess[bytes]:
        return self._act(where, commit, switch=True)

    def _act(self, where: Path, commit: str, *, switch: bool) -> subprocess.CompletedProcess[bytes]:
        (step,) = Spec(repo=f"file://{self.source}@{commit}").all_steps()
        (action,) = step.switch if switch else step.actions
        assert isinstance(action, Shell)
        env = {**self._env, **action.env}
        return subprocess.run(["sh", "-c", action.script], cwd=where, env=env, capture_output=True, check=False)

    def write(self, name: str, text: str = "", mode: int = 0o644) -> None:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def remove(self, *names: str) -> None:
        self.git(self.source, "rm", "-q", "-r", "-f", "--", *names)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def commits(repository: Repository) -> tuple[str, str]:
    """The wanted commit, and a later one, which is what the policy is asked for."""
    for number in range(30):  # so many that they arrive as a pack, with deltas
        repository.write(f"many/{number}.txt", "the same in both\n" * 50 + str(number))
    repository.write("changed.py", "before\n" * 200)
    repository.write("old name.txt", "renamed\n" * 20)
    repository.write("deleted later/only\nfile.txt", "was here")
    repository.write("file-then-directory", "a file")
    repository.write("directory-then-file/inside", "in a directory")
    repository.write("tool", "#!/bin/sh\n", 0o755)
    repository.write("plain", "#!/bin/sh\n")
    (repository.source / "link").symlink_to("changed.py")
    (repository.source / "link-then-file").symlink_to("plain")
    wanted = repository.commit("the task")
    repository.write("changed.py", "before\n" * 100 + FORMER.decode() + "\n" + "before\n" * 100)
    repository.git(repository.source, "mv", "old name.txt", "new name.txt")
    repository.remove("deleted later", "file-then-directory", "directory-then-file", "link-then-file", "link")
    repository.write("file-then-directory/inside", FORMER.decode() + " in a directory")
    repository.write("directory-then-file", FORMER.decode() + " as a file")
    repository.write("link-then-file", FORMER.decode() + " no link")
    repository.write(f"added/{FORMER.decode()}.py", FORMER.decode() + " added")
    (repository.source / "link").symlink_to(FORMER.decode())
    (repository.source / "tool").chmod(0o644)
    (repository.source / "plain").chmod(0o755)
    return wanted, repository.commit(f"the fix: {FORMER.decode()}")


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and directory outside of .git, with its mode and what it holds."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name == ".git" or name.startswith(".git/"):
            continue
        mode = path.lstat().st_mode
        held = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[name] = (stat.S_IFMT(mode) | (mode & 0o111 if stat.S_ISREG(mode) else 0), held)
    return found


def inside(pack: bytes) -> Iterator[bytes]:
    """What each object of a pack holds, deltas as they are."""
    count, at = int.from_bytes(pack[8:12], "big"), 12
    for _ in range(count):
        kind = pack[at] >> 4 & 7
        while pack[at] & 0x80:
            at += 1
        at += 1
        if kind == 6:  # a delta, by an offset of any length
            while pack[at] & 0x80:
                at += 1
            at += 1
        elif kind == 7:  # a delta, by its object's name
            at += 20
        stream = zlib.decompressobj()
        yield stream.decompress(pack[at:])
        at = len(pack) - len(stream.unused_data)


def everything(where: Path) -> Iterator[tuple[str, bytes]]:
    """Every byte of a directory, as it is and as git reads it."""
    for path in sorted(where.rglob("*")):
        yield "a name", os.fsencode(path.relative_to(where))
        if path.is_symlink():
            yield str(path), os.fsencode(path.readlink())
        elif path.is_file():
            raw = path.read_bytes()
            yield str(path), raw
            if path.suffix == ".pack":
                yield from ((str(path), held) for held in inside(raw))
            elif path.parent.parent.name == "objects" and len(path.parent.name) == 2:
                yield str(path), zlib.decompress(raw)


def unique_objects(repository: Repository, former: str, wanted: str) -> set[str]:
    """Names of the objects that `former` has and `wanted` has not."""
    of_each = (
        repository.git(repository.source, "rev-list", "--objects", "--no-object-names", "--no-walk", commit).split()
        for commit in (former, wanted)
    )
    only, kept = of_each
    return set(only) - set(kept)


def assert_forgotten(repository: Repository, where: Path, former: str, wanted: str) -> None:
    names = unique_objects(repository, former, wanted)
    assert former in names
    assert len(names) >= 2
    needles = [FORMER, *(name.encode() for name in names), *(bytes.fromhex(name) for name in names)]
    left = [(place, needle) for place, held in everything(where) for needle in needles if needle in held]
    assert left == []
    assert not names & set(repository.git(where, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    assert repository.git(where, "fsck", "--full", "--no-reflogs", "--unreachable", "--lost-found") == ""
    assert repository.git(where, "reflog", "--all") == ""
    assert repository.git(where, "for-each-ref") == ""


def assert_as_fresh(repository: Repository, where: Path, commit: str, name: str = "fresh") -> None:
    fresh = repository.clone(name, commit)
    assert tree(where) == tree(fresh)
    for question in (
        ["status", "--porcelain", "--ignored"],
        ["ls-files", "--stage"],
        ["rev-list", "HEAD"],
        ["rev-parse", "--is-shallow-repository"],
        ["config", "--local", "--list"],
        ["cat-file", "--batch-all-objects", "--batch-check"],
    ):
        assert repository.git(where, *question) == repository.git(fresh, *question), question
    for held in ("FETCH_HEAD", "HEAD"):
        assert (where / ".git" / held).read_bytes() == (fresh / ".git" / held).read_bytes()
    shallow = [(path / ".git/shallow").exists() and (path / ".git/shallow").read_bytes() for path in (where, fresh)]
    assert shallow[0] == shallow[1]
    made, expected = ({path.name for path in (each / ".git").iterdir()} for each in (where, fresh))
    assert made == expected - {"logs", "branches"}


def test_a_switch_from_the_fix_to_the_task_leads_to_a_fresh_clone_and_forgets_the_fix(
    repository: Repository, commits: tuple[str, str]
) -> None:
    wanted, former = commits
    where = repository.clone("work", former)
    assert any(FORMER in held for _, held in everything(where))  # the search can find
    done = repository.switch(where, wanted)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_forgotten(repository, where, former, wanted)
    assert_as_fresh(repository, where, wanted)


def test_a_switch_to_a_later_commit_and_back_and_to_itself_leads_to_fresh_clones(
    repository: Repository, commits: tuple[str, str]
) -> None:
    first, second = commits
    where = repository.clone("work", first)
    for turn, commit in enumerate([second, second, first, first]):
        assert repository.switch(where, commit).returncode == 0
        assert_as_fresh(repository, where, commit, f"fresh{turn}")
    assert_forgotten(repository, where, second, first)


def test_a_switch_forgets_what_refs_logs_and_loose_objects_held(repository: Repository, commits: tuple[str, str]) -> None:
    wanted, former = commits
    where = repository.clone("work", former)
    repository.git(where, "tag", "-a", "-m", FORMER.decode(), "solution")
    repository.git(where, "branch", FORMER.decode())
    repository.git(where, "pack-refs", "--all")
    repository.git(where, "commit", "-q", "--allow-empty", "-m", FORMER.decode() + " above")
    repository.git(where, "reset", "-q", "--hard", former)  # leaves ORIG_HEAD and a dangling commit
    (where / "changed.py").write_bytes(FORMER)
    repository.git(where, "stash", "push", "-q")
    (where / ".git/.swap").write_bytes(FORMER)
    (where / ".git/rr-cache").mkdir()
    (where / ".git/rr-cache/kept").write_bytes(FORMER)
    (where / ".git/info/grafts").write_text(f"{former}\n")
    assert repository.switch(where, wanted).returncode == 0
    assert_forgotten(repository, where, former, wanted)


def test_a_switch_keeps_what_was_installed(repository: Repository, commits: tuple[str, str]) -> None:
    wanted, former = commits
    where = repository.clone("work", former)
    kept = {"env/bin/tool": "installed", "added/built.so": "beside a file that goes", "many/built.o": "beside files that stay"}
    for name, text in kept.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    (where / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (where / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch hook-ran\n")
    (where / ".git/hooks/post-checkout").chmod(0o755)
    (where / ".git/info/exclude").write_text("*.o\n")
    repository.git(where, "config", "user.name", "kept")
    (where / "many/1.txt").write_text("patched: the commits have the same here")
    assert repository.switch(where, wanted).returncode == 0
    fresh = tree(repository.clone("fresh", wanted))
    fresh["many/1.txt"] = (stat.S_IFREG, b"patched: the commits have the same here")
    for name, text in kept.items():
        fresh[name] = (stat.S_IFREG, text.encode())
    fresh |= dict.fromkeys(("env", "env/bin", "added"), (stat.S_IFDIR, b""))
    assert tree(where) == fresh
    assert (where / ".git/hooks/pre-commit").exists()
    assert repository.git(where, "config", "user.name") == "kept"
    assert repository.git(where, "status", "--porcelain") == "M many/1.txt\n?? added/\n?? env/"


def test_a_switch_removes_what_python_compiled_of_changed_files_alone(repository: Repository) -> None:
    names = ["top.py", 'a b/it\'s\n"quoted".py', "-rf/x.py"]
    for name in [*names, "same.py"]:
        repository.write(name, "value = 1\n")
    wanted = repository.commit("task")
    for name in names:
        repository.write(name, f"value = '{FORMER.decode()}'\n")
    former = repository.commit("fix")
    where = repository.clone("work", former)
    caches = [(where / name).parent / "__pycache__" for name in names]
    for cache, name in zip(caches, names, strict=True):
        cache.mkdir()
        for tag in ("cpython-311", "cpython-311.opt-1", "cpython-311-pytest-8.3"):
            (cache / f"{Path(name).stem}.{tag}.pyc").write_bytes(FORMER)
    (caches[0] / "same.cpython-311.pyc").write_bytes(b"kept")
    assert repository.switch(where, wanted).returncode == 0
    assert [path.name for path in where.rglob("*.pyc")] == ["same.cpython-311.pyc"]
    assert_forgotten(repository, where, former, wanted)


def _patched_by_both(repository: Repository, where: Path) -> None:
    (where / "changed.py").write_text("patched while it was installed")


def _in_the_way(repository: Repository, where: Path) -> None:
    (where / "old name.txt").write_text("built; not what the commit has there")


def _ignored_in_the_way(repository: Repository, where: Path) -> None:
    (where / ".git/info/exclude").write_text("old name.txt\n")
    _in_the_way(repository, where)


def _ignored_in_a_directory_in_the_way(repository: Repository, where: Path) -> None:
    (where / ".git/info/exclude").write_text("*.o\n")
    (where / "file-then-directory/built.o").write_text("built where the commit has a file")


def _submodules(repository: Repository, where: Path) -> None:
    (where / ".git/modules").mkdir()


def _no_clone(repository: Repository, where: Path) -> None:
    (where / ".git").rename(where / "git")


@pytest.mark.parametrize(
    "hinder",
    [_patched_by_both, _in_the_way, _ignored_in_the_way, _ignored_in_a_directory_in_the_way, _submodules, _no_clone],
)
def test_a_switch_that_would_not_lead_to_the_same_is_refused(
    repository: Repository, commits: tuple[str, str], hinder: Callable[[Repository, Path], None]
) -> None:
    wanted, former = commits
    where = repository.clone("work", former)
    hinder(repository, where)
    done = repository.switch(where, wanted)
    assert done.returncode != 0
    assert done.stderr


def test_a_switch_over_other_attributes_is_refused(repository: Repository) -> None:
    repository.write("text.txt", "the same in both\n")
    repository.write("deep/down/x", "")
    first = repository.commit("first")
    repository.write("deep/down/.gitattributes", "* eol=crlf\n")
    second = repository.commit("second")
    done = repository.switch(repository.clone("work", first), second)
    assert done.returncode == 1
    assert b".gitattributes" in done.stderr


def test_a_switch_to_what_is_not_there_fails(repository: Repository, commits: tuple[str, str]) -> None:
    where = repository.clone("work", commits[1])
    assert repository.switch(where, "0" * 39 + "1").returncode != 0
