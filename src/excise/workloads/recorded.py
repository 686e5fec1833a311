"""A recorded trajectory as a workload: the same actions on the same start state, and the same exit codes."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise.action import Action, Batch, Exec, Shell
from excise.errors import SpecError
from excise.spec import Spec
from excise.trajectory import Line, Start, read
from excise.workloads import files, mini_swe_agent
from excise.workloads.workload import Expect, Turn

TIMEOUT_S = 600.0


class Recorded:
    """One sandbox's lines of a file: JSONL as `excise record` writes it, or what mini-swe-agent saved (.json)."""

    def __init__(self, path: Path, sandbox: str | None = None, sha256: str | None = None) -> None:
        """`sandbox`: the beginning of its name, where the file has several. `sha256`: refuse a file that was changed."""
        files.check(path, sha256)
        lines = mini_swe_agent.read(path) if path.suffix == ".json" else read(path)
        own = _of_one(path, lines, sandbox)
        self._start = next((line.start for line in own if line.start is not None), Start())
        if self._start.snapshot:
            raise SpecError(f"{path}: the sandbox began from a snapshot, which no line repeats; choose another with ?sandbox=")
        self._turns = tuple(_turn(path, line) for line in own if line.start is None)
        if not self._turns:
            raise SpecError(f"{path} has no action; record a run that has some")
        self._name = files.name(path, sandbox=sandbox)

    @property
    def name(self) -> str:
        return self._name

    @property
    def image(self) -> str:
        return self._start.image

    def spec(self, image: str) -> Spec:
        kept = {name: getattr(self._start, name) for name in Start.__struct_fields__ if name not in ("image", "snapshot")}
        return Spec(image=image, **kept)

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        """As recorded: what others wrote prints no nonce of ours."""
        del nonce
        return self._turns


def _of_one(path: Path, lines: Sequence[Line], sandbox: str | None) -> list[Line]:
    names = dict.fromkeys(line.sandbox for line in lines)
    chosen = [name for name in names if sandbox is None or name.startswith(sandbox)]
    if len(chosen) > 1:
        counts = (f"{name} ({sum(line.sandbox == name for line in lines) - 1} actions)" for name in chosen)
        raise SpecError(f"{path} has several sandboxes: {', '.join(counts)}; choose one with ?sandbox=")
    if not chosen and lines:
        raise SpecError(f"{path} has no sandbox {sandbox}; it has: {', '.join(names)}")
    return [line for line in lines if line.sandbox in chosen]


def _turn(path: Path, line: Line) -> Turn:
    if line.verb is not None:
        raise SpecError(
            f"{path}: the run had an {line.verb}, which a trajectory cannot repeat; make it part of the start state"
        )
    action = line.action if line.action is not None else _short(path, line)
    expect = Expect(exit_code=line.exit_code, end=line.end)
    if line.errno is not None and not isinstance(action, Batch):
        # Alone, a file action that fails is raised; in a batch it is an answer.
        return Turn(Batch((action,)), Expect(exit_code=None), line.think_s)
    return Turn(_with_timeout(action), expect, line.think_s)


def _short(path: Path, line: Line) -> Action:
    if line.run is None:
        raise SpecError(f'{path}: a line has neither action nor run; one looks like {{"run": "ls", "think_s": 1.5}}')
    return Shell(line.run) if isinstance(line.run, str) else Exec(line.run)


def _with_timeout(action: Action) -> Action:
    if isinstance(action, Exec | Shell) and action.timeout_s is None:
        return msgspec.structs.replace(action, timeout_s=TIMEOUT_S)
    return action
