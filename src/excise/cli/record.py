"""`excise record`: run a program of one's own and write down what it does in sandboxes, to be measured again anywhere."""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import App, Parameter

from excise.cli.sentences import FAILED, say
from excise.errors import SpecError

app = App(
    name="record",
    help_epilogue="""\
Every sandbox that the command opens, in whatever process of it, adds its actions to FILE with the pauses between them, and \
never the value of a secret. `excise measure --workload FILE` runs them again. Exit code: the command's own; 1 when it used no \
sandbox; 2 when the request is wrong.

Examples:
  excise record -o rollout.jsonl -- python3 train.py --steps 1
  excise record -o hello.jsonl -- excise run local -- echo hello
  excise record -o agent.jsonl --from agent.traj.json
  excise measure local docker --workload rollout.jsonl""",
)


@app.default
def record(
    *command: str,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    source: Annotated[Path | None, Parameter(name="--from")] = None,
) -> int:
    """Write what a command does in sandboxes to a file that can be measured.

    Parameters
    ----------
    command
        The program and its arguments, after --.
    out
        The trajectory file to write, a new one; it should end in .jsonl.
    source
        Convert a trajectory that mini-swe-agent saved, instead of running a command.
    """
    if bool(command) == (source is not None):
        raise SpecError("give a command after --, or a trajectory to convert with --from")
    if out.exists():
        raise SpecError(f"{out} is there already: name another file with -o, recordings are never overwritten")
    if out.suffix != ".jsonl":
        raise SpecError(f"{out} would not be taken for a trajectory: give it a name that ends in .jsonl")
    return _run(command, out) if source is None else _convert(source, out)


def _convert(source: Path, out: Path) -> int:
    from excise.trajectory import encode  # noqa: PLC0415 - `excise record --help` does not pay for it
    from excise.workloads.mini_swe_agent import read  # noqa: PLC0415

    lines = read(source)
    out.write_bytes(b"".join(map(encode, lines)))
    say(f"{out} holds its actions: {len(lines) - 1}")
    return 0


def _run(command: tuple[str, ...], out: Path) -> int:
    from excise.trajectory import VARIABLE  # noqa: PLC0415 - see above

    if shutil.which(command[0]) is None:
        raise SpecError(f"there is no program {command[0]!r}; name one after --, as in `-- python3 train.py`")
    with subprocess.Popen(command, env={**os.environ, VARIABLE: str(out.absolute())}) as child, _passing_on(child):
        code = child.wait()
    if not out.exists():
        say(f"nothing was recorded: {command[0]} opened no sandbox of excise")
        return code or FAILED
    say(_summary(out))
    return code if code >= 0 else 128 - code


def _summary(out: Path) -> str:
    from excise.trajectory import read  # noqa: PLC0415 - see above

    lines = read(out)
    sandboxes = len({line.sandbox for line in lines})
    actions = sum(line.start is None for line in lines)
    return f"{out} holds the actions of each sandbox: {actions} in {sandboxes}"


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Generator[None]:
    """The command decides how it ends: Ctrl-C reaches it from the terminal as it reaches us, the rest we pass on."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
