"""What a rollout asks for: an image, the steps that lead from it to the start state, and the terms it runs on."""

import enum
import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from excise.action import Command, FileAction, Shell
from excise.errors import SpecError

_MOST = 1 << 62  # what every kernel takes

Kernel = Literal["shared", "intercepted", "own"]


class Stage(enum.Enum):
    """How deep in the preparation a step lies; warm pools keep sandboxes at each depth."""

    BASE = "base"
    IMAGE = "image"
    REPO = "repo"
    DEPS = "deps"


class Step(msgspec.Struct, frozen=True):
    """A named piece of preparation: its actions must all succeed."""

    name: str
    actions: tuple[Command | FileAction, ...]
    stage: Stage = Stage.DEPS
    share: bool = True
    """Whether what it leads to may be kept for all sandboxes that want the same, where such is kept; else it is run in each."""
    of: str = ""
    """What it is about, such as a repository: steps of one `of`, if they have a `switch`, are siblings."""
    switch: tuple[Command | FileAction, ...] = ()
    """Leads from any sibling, and what steps with a lock made upon it, to where this step leads; from itself, too. It leaves no
    trace of the sibling, which may hold what a policy is asked to find, and fails where it cannot."""
    lock: str | None = None
    """What its outcome depends on, as a digest of a lock file: equal steps of equal locks lead to the same over any sibling."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox may use. None means no limit was asked for, not that there is none."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    inodes: int | None = None

    def asked(self) -> frozenset[str]:
        return frozenset(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    def check(self) -> None:
        """Refuse a limit of nothing or less: it would mean "none" to one kernel and "at once" to another."""
        for name in sorted(self.asked()):
            value: object = getattr(self, name)
            if name == "cpus":
                if not isinstance(value, int | float) or not 0 < value < math.inf:
                    raise SpecError(f"limits.cpus={value!r}: it is a number above 0, such as 0.5; leave it out for no limit")
            elif not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST:
                raise SpecError(f"limits.{name}={value!r}: it is a whole number from 1 to 2^62; leave it out for no limit")


class Allow(msgspec.Struct, frozen=True):
    """Egress to these hosts and ports, and nothing else."""

    hosts: tuple[str, ...]
    """Names, `*.name` (whatever lies below it, not itself), addresses and blocks of addresses (`10.1.0.0/16`).

    A name that leads to a private, link-local or loopback address is refused: list the address too. A block opens a
    private range if it lies inside it (0.0.0.0/0 is every public address); the host's own addresses are opened one by one.
    """
    ports: tuple[int, ...] = (443,)


Network = Literal["none", "open"] | Allow
"""none: loopback alone. open: every public host and port, but nothing private, link-local or of the host itself."""


class Mount(msgspec.Struct, frozen=True):
    """A host directory inside the sandbox, read-only unless said otherwise."""

    source: str
    target: str
    read_only: bool = True


class Secret:
    """A value that is handed to actions as an environment variable and never shows in a text we write."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled: hand it to the process that needs it")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A start state and its terms. `env`, `workdir` and `user` default to the image's own."""

    image: str = "host"
    repo: str | None = None
    """`url@commit`: cloned into the working directory by a step of its own."""
    deps: str | None = None
    """A shell script that installs what the repository needs, run after the clone."""
    lock: str | None = None
    """What `deps` leads to depends on this alone (a digest of the lock file, say), not on the commit: see `Step.lock`.

    A warm pool may then hand out what `deps` made upon another commit, with the files of this one. Do not say it of a script
    that copies or compiles the repository itself (`pip install .`; with `-e` it does not): the copy would be of the other.
    """
    steps: tuple[Step, ...] = ()
    env: Mapping[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    boot: tuple[Command, ...] = ()
    """Started, and left running, after every create, reset and fork."""
    ready: tuple[Command, ...] = ()
    """Must succeed before the sandbox is handed out, each time."""
    network: Network | None = None
    """None: as closed as the substrate can make it. "none" said aloud must be enforced, or the spec is refused."""
    build_network: Network | None = None
    """What the steps have instead: they install, and the run is cut off. None: the same as `network`."""
    mounts: tuple[Mount, ...] = ()
    secrets: Mapping[str, Secret] = {}
    devices: tuple[str, ...] = ()
    limits: Limits = Limits()
    isolation: Kernel | None = None
    """The least separation from the host's kernel that will do."""
    needs: frozenset[str] = frozenset()
    """Names of Capabilities the rollout cannot do without."""
    labels: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        for name, secret in self.secrets.items():
            if not isinstance(secret, Secret):  # pyright: ignore[reportUnnecessaryIsInstance] - who has no type checker
                raise SpecError(f"the secret {name} is plain text, which logs would show: write Secret(...) around it")
        if self.lock is not None and not (self.lock and self.deps is not None):
            raise SpecError(f"lock={self.lock!r} says what deps depends on: give both, and no empty digest, or leave it out")

    def all_steps(self) -> tuple[Step, ...]:
        """Every step in order, those that `repo` and `deps` stand for included."""
        made: list[Step] = []
        if self.repo is not None:
            made.append(_clone_step(self.repo))
        if self.deps is not None:
            made.append(Step("deps", (Shell(self.deps),), Stage.DEPS, lock=self.lock))
        return (*made, *self.steps)

    def with_steps(self, steps: tuple[Step, ...]) -> "Spec":
        """The same, with these steps instead of all that it has."""
        return msgspec.structs.replace(self, repo=None, deps=None, lock=None, steps=steps)

    def unshared(self) -> "Spec":
        """The same, with every step run in every sandbox."""
        return self.with_steps(tuple(msgspec.structs.replace(step, share=False) for step in self.all_steps()))


def _clone_step(repo: str) -> Step:
    url, at, commit = repo.rpartition("@")
    # A ":" is the rest of git@host:path, whose "@" is no commit's; a "-" in front would be taken for an option.
    if not (url and at and commit) or set("/:") & set(commit) or commit.startswith("-") or url.startswith("-"):
        raise SpecError(f"repo={repo!r} is not url@commit; name the commit, so that the start state is one state")
    env = {"url": url, "commit": commit}
    of = url.rstrip("/").removesuffix(".git")
    return Step("repo", (Shell(_CLONE, env=env),), Stage.REPO, of=of, switch=(Shell(_SWITCH, env=env),))


_CLONE = 'git init -q . && git fetch -q --depth 1 "$url" "$commit" && git checkout -q FETCH_HEAD'

# From a clone of another commit to this one: the files of a fresh clone, and whatever is untracked stays. The commit before may
# be the answer that a policy is asked for, so nothing of it may be left: not by looking for its objects, but by packing those
# of this commit anew and throwing the rest of .git away, except for what no commit wrote. Only what changed comes over the
# network, for the commit before is still there while this one is fetched. It refuses what would not be as a fresh clone is:
# - another .gitattributes: it decides how files are written that are the same in both commits
# - submodules: which of their commits are checked out depends on the commit
# - what deps wrote into files that changed, or where a new file goes: git's own refusal, for ignored files too
# Python caches what it compiled beside its source: of changed files, that is the commit before in another form.
_SWITCH = r"""
set -e
git() {
  command git -c core.hooksPath=/dev/null -c gc.auto=0 -c maintenance.auto=false -c core.splitIndex=false \
    -c core.untrackedCache=false -c core.fsmonitor=false "$@"
}
refuse() {
  echo "this clone cannot be switched to $commit: $1" >&2
  exit 1
}
[ -d .git ] || refuse "there is no .git directory"
[ ! -e .git/modules ] || refuse "it has submodules"
git fetch -q --depth 1 "$url" "$commit"
read -r now _ <.git/FETCH_HEAD
git diff --name-only --no-renames -z HEAD "$now" -- '*.py' ':(glob)**/.gitattributes' >.git/changed
xargs -0 -r sh -c '
  for file do
    file=./$file
    case $file in */.gitattributes) exit 255 ;; esac
    cache=${file%/*}/__pycache__ name=${file##*/}
    rm -f "$cache/${name%.py}".*.pyc
    rmdir "$cache" 2>/dev/null || :
  done' sh <.git/changed || refuse "its .gitattributes are others"
git checkout -q --detach --no-overwrite-ignore "$now"

rm -rf .git/next
mkdir -p .git/next/objects/pack .git/next/objects/info .git/next/refs/heads .git/next/refs/tags
printf '%s\n' "$now" | git pack-objects -q --revs --delta-base-offset .git/next/objects/pack/pack >/dev/null
printf '%s\n' "$now" >.git/next/HEAD
if grep -qsFx "$now" .git/shallow; then printf '%s\n' "$now" >.git/next/shallow; fi
for each in .git/* .git/.[!.]* .git/..?*; do
  case ${each#.git/} in
    config | description | hooks | info | index | FETCH_HEAD | next) ;;
    *) rm -rf "$each" ;;
  esac
done
rm -f .git/info/refs .git/info/grafts
mv .git/next/* .git/
rmdir .git/next
"""
