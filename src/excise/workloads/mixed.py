"""Many start states at once: tasks in small repositories, half of which have siblings, each with dependencies to install.

A task is a spec and a short rollout in it. Repositories lie in the image, so that clones need no network: `image_over` adds
them to the tar of another image. What a pool could get wrong is part of every rollout's answer: the commit, the versions
installed, that no sibling's commit is there to be read, and that nothing of an earlier rollout is.
"""

import json
import shutil
import tarfile
import tempfile
from functools import cached_property
from pathlib import Path

import msgspec

from excise.action import Shell
from excise.spec import Spec, Stage, Step
from excise.workloads.repositories import LOCK_FILE, Built, Commit, built, history, name_of
from excise.workloads.t1 import ENV
from excise.workloads.workload import Expect, Turn

REPOSITORIES = 100
"""Of which 50 have three commits and 50 have one: 200 tasks."""
ROOT = "srv/repositories"
"""Where the repositories lie in the image."""
_WORKDIR = "/work"
_DEPS = "/opt/deps"
_TIMEOUT_S = 120.0
_TOOLS = "mkdir -p /opt/tools && cp -r /usr/lib/python3.*/logging /opt/tools/"
"""The image's own step, the same for all: what stands in the last lines of a Dockerfile."""
_INSTALL = f"""set -e
mkdir -p {_DEPS}
while read -r name version; do
  cp -r /usr/lib/python3.*/"$name" {_DEPS}/
  echo "$version" > {_DEPS}/VERSION
done < {LOCK_FILE}
find {_DEPS} -name __pycache__ -prune -exec rm -r {{}} +
exec python3 -IS -m py_compile $(find {_DEPS} -name '*.py')"""
"""What an installer does: files are copied and compiled, 50 to 150 ms of it. It depends on the lock file alone."""
_ROLLOUT = f"""set -e
test "$(git rev-parse HEAD)" = "$commit"
for other in $others; do
  if git cat-file -e "$other" 2>/dev/null; then echo "the commit $other is here"; exit 3; fi
done
for place in . {_DEPS} /tmp; do
  if test -e "$place/mark"; then echo "$place has the mark of an earlier rollout"; exit 4; fi
  echo "$nonce" > "$place/mark"
done
exec python3 main.py {_DEPS}/VERSION "$nonce"
"""
DEPTHS: dict[str, tuple[Stage, ...]] = {
    "base": (Stage.BASE,),
    "image": (Stage.BASE, Stage.IMAGE),
    "repo": (Stage.BASE, Stage.IMAGE, Stage.REPO),
    "deps": (Stage.BASE, Stage.IMAGE, Stage.REPO, Stage.DEPS),
}
"""Which steps of a task are done in a sandbox that is kept at this depth."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One start state and its rollout: a workload, one of many."""

    number: int
    commit: Commit
    sha: str
    others: tuple[str, ...]
    """Commits of the same repository: what a sandbox may have held before it was this one's."""

    @property
    def name(self) -> str:
        return f"mixed {name_of(self.commit.repository)}.{self.commit.number}"

    def spec(self, image: str) -> Spec:
        """The image's own step, then clone and install as `repo` and `deps` stand for them."""
        repo = f"/{ROOT}/{name_of(self.commit.repository)}.git@{self.sha}"
        own = Spec(repo=repo, deps=_INSTALL, lock=self.commit.digest).all_steps()
        return Spec(
            image=image,
            steps=(Step("tools", (Shell(_TOOLS),), Stage.IMAGE), *own),
            env={**ENV, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
            workdir=_WORKDIR,
        )

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        env = {"commit": self.sha, "others": " ".join(self.others), "nonce": nonce}
        version = self.commit.lock.splitlines()[-1].split()[1]
        answer = json.dumps([self.commit.total, version, nonce]) + "\n"
        return (Turn(Shell(_ROLLOUT, env=env, timeout_s=_TIMEOUT_S), Expect(stdout=answer.encode())),)


class Mixed:
    """The tasks, in an order that has nothing to do with which are siblings: the first is the one most often asked for."""

    def __init__(self, repositories: int = REPOSITORIES) -> None:
        self.repositories = repositories
        self._built: Built | None = None

    def build(self, cache: Path) -> None:
        """Blocks; what was built before is there at once."""
        self._built = built(self.repositories, cache)

    @property
    def name(self) -> str:
        return "mixed" if self.repositories == REPOSITORIES else f"mixed?repositories={self.repositories}"

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._tasks

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        """Popularity is by place, so places are drawn: a sibling is no more often next to another than anywhere else."""
        heads = self._ready().heads
        found: list[tuple[Commit, str, tuple[str, ...]]] = []
        for number in range(self.repositories):
            commits = history(number)
            shas = [heads[f"{name_of(number)}.{commit.number}"] for commit in commits]
            found += [(one, sha, tuple(x for x in shas if x != sha)) for one, sha in zip(commits, shas, strict=True)]
        found.sort(key=lambda one: one[1])  # by hash: as good as drawn, and the same everywhere
        return tuple(Task(number=n, commit=one, sha=sha, others=rest) for n, (one, sha, rest) in enumerate(found))

    def sibling(self, number: int) -> Task:
        """Another commit of its repository with the same lock file."""
        return self.tasks[self._siblings[number]]

    @property
    def with_sibling(self) -> tuple[int, ...]:
        """The numbers of the tasks that have one."""
        return tuple(self._siblings)

    @cached_property
    def _siblings(self) -> dict[int, int]:
        by: dict[tuple[int, str], list[int]] = {}
        for task in self.tasks:
            by.setdefault((task.commit.repository, task.commit.digest), []).append(task.number)
        return {one: group[at - 1] for group in by.values() if len(group) > 1 for at, one in enumerate(group)}

    def image_over(self, tar: Path, digest: str, cache: Path) -> Path:
        """The image whose tar and digest are given, with the repositories in it. Blocks; made once."""
        place = self._ready().place
        made = cache / "mixed" / f"{place.name}-{digest.removeprefix('sha256:')[:16]}.tar"
        if made.exists():
            return made
        with tempfile.TemporaryDirectory(prefix=".image-", dir=made.parent) as making:
            part = Path(making) / made.name
            shutil.copyfile(tar, part)
            with tarfile.open(part, "a") as image:
                for entry in sorted(place.rglob("*")):
                    image.add(entry, f"{ROOT}/{entry.relative_to(place)}", recursive=False, filter=_plain)
            part.rename(made)
        return made

    def _ready(self) -> Built:
        if self._built is None:
            raise RuntimeError("the repositories are not built yet: call build first")
        return self._built


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Root's, and of no particular time: the same bytes whoever builds them."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def at_depth(spec: Spec, depth: str) -> Spec:
    """The start state of a sandbox that is kept at this depth on the way to `spec`."""
    done = tuple(step for step in spec.all_steps() if step.stage in DEPTHS[depth])
    return msgspec.structs.replace(spec, repo=None, deps=None, lock=None, steps=done)
