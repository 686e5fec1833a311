"""A user's own workload: a TOML file of a repository, what is set up, and the commands of one rollout."""

import asyncio
import os
import subprocess
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from excise.action import Exec, Shell, Write
from excise.errors import SpecError
from excise.spec import Network, Spec, Stage, Step
from excise.workloads import files
from excise.workloads.workload import Expect, Turn

_BUNDLE = "repository.bundle"
_REF = "refs/heads/excise"
_GIT_TIMEOUT_S = 300.0
_SETUP_TIMEOUT_S = 1800.0


class Doing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command, and what must come of it."""

    run: str | tuple[str, ...]
    """Shell text, or a program and its arguments."""
    exit_code: int | Literal["any"] = 0
    pattern: str | None = None
    """A regular expression that its output must have."""
    think_s: float = 0.0
    timeout_s: float | None = None
    session: str | None = None
    repeat: int = 1


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    commands: tuple[str | Doing, ...]
    image: str | None = None
    repo: str | None = None
    """A directory, or url@commit; the working directory becomes it."""
    setup: tuple[str, ...] = ()
    """Shell scripts that end the start state."""
    env: Mapping[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    network: Network | None = None
    build_network: Network | None = None
    timeout_s: float = 600.0
    """Of each command that has none of its own."""


class Own:
    """What the file at `path` describes."""

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        files.check(path, sha256)
        self._name = files.name(path)
        self._file = _read(path)
        self._folder = path.parent
        self._bundle: bytes | None = None
        self._turns = tuple(turn for one in self._file.commands for turn in self._of(path, one))
        if not self._turns:
            raise SpecError(f'{path} has no commands; it needs some, such as commands = ["make test"]')

    @property
    def name(self) -> str:
        return self._name

    @property
    def image(self) -> str | None:
        return self._file.image

    @asynccontextmanager
    async def hosted(self, cache: Path) -> AsyncGenerator[None]:
        """A repository of this machine is packed, once, from what is committed there."""
        del cache
        directory, commit = self._local()
        if directory is not None:
            self._bundle = await asyncio.to_thread(_packed, directory, commit)
        yield

    def spec(self, image: str) -> Spec:
        file = self._file
        steps = (*self._repository(), *self._setup())
        remote = None if self._local()[0] is not None else file.repo
        return Spec(
            image=image,
            repo=remote,
            steps=steps,
            env=file.env,
            workdir=file.workdir,
            user=file.user,
            network=file.network,
            build_network=file.build_network,
        )

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        """As they are in the file: what a user's commands print is their own."""
        del nonce
        return self._turns

    def _local(self) -> tuple[Path | None, str]:
        """The directory that `repo` is, and its commit; None where it is an address."""
        repo = self._file.repo
        if repo is None or "://" in repo or repo.startswith("git@"):
            return None, ""
        whole = self._folder / repo
        if whole.is_dir():
            return whole, "HEAD"
        directory, _, commit = repo.rpartition("@")
        return self._folder / directory, commit

    def _repository(self) -> tuple[Step, ...]:
        if self._local()[0] is None:
            return ()
        if self._bundle is None:
            raise RuntimeError("the repository is not packed yet: use the workload inside `async with hosted(...)`")
        script = f"git init -q . && git fetch -q {_BUNDLE} {_REF} && git checkout -q --detach FETCH_HEAD && rm {_BUNDLE}"
        return (Step("repository", (Write(_BUNDLE, self._bundle), Shell(script, timeout_s=_GIT_TIMEOUT_S)), Stage.REPO),)

    def _setup(self) -> tuple[Step, ...]:
        scripts = tuple(Shell(script, timeout_s=_SETUP_TIMEOUT_S) for script in self._file.setup)
        return (Step("setup", scripts, Stage.DEPS),) if scripts else ()

    def _of(self, path: Path, one: str | Doing) -> tuple[Turn, ...]:
        doing = Doing(run=one) if isinstance(one, str) else one
        if doing.repeat < 1:
            raise SpecError(f"{path}: repeat = {doing.repeat}: a command runs at least once")
        if doing.session is not None and not isinstance(doing.run, str):
            raise SpecError(f"{path}: a session takes shell text, not an argv list")
        timeout_s = self._file.timeout_s if doing.timeout_s is None else doing.timeout_s
        if isinstance(doing.run, str):
            action = Shell(doing.run, session=doing.session, timeout_s=timeout_s)
        else:
            action = Exec(doing.run, timeout_s=timeout_s)
        expect = Expect(exit_code=None if doing.exit_code == "any" else doing.exit_code, pattern=doing.pattern)
        return (Turn(action, expect, doing.think_s),) * doing.repeat


def _read(path: Path) -> Description:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Description)
    except OSError as error:
        raise SpecError(f"the workload {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} is not a workload: {error}; it has commands and, if wanted, image, repo and setup") from None


def _packed(directory: Path, commit: str) -> bytes:
    """The commit of a repository of this machine, with its history, as one file. The repository itself is left as it is."""
    with tempfile.TemporaryDirectory(prefix="excise-") as place:
        top = _git(directory, "rev-parse", "--show-toplevel").strip()
        sha = _git(directory, "rev-parse", "--verify", f"{commit}^{{commit}}").strip()
        _git(directory, "clone", "-q", "--bare", "--shared", top, f"{place}/bare")
        _git(Path(place, "bare"), "update-ref", _REF, sha)
        _git(Path(place, "bare"), "bundle", "create", "-q", f"{place}/{_BUNDLE}", _REF)
        return Path(place, _BUNDLE).read_bytes()


def _git(directory: Path, *words: str) -> str:
    argv = ["git", "-C", str(directory), *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT_S)
    except FileNotFoundError:
        raise SpecError("a repository is packed with git, which is not installed; install git") from None
    if done.returncode != 0:
        reason = done.stderr.strip() or f"git {words[0]} failed"
        raise SpecError(f"repo = {str(directory)!r} cannot be used: {reason}; name a git repository, or url@commit")
    return done.stdout
