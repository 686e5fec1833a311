"""Shell modes: the same commands by another way in. Files are read and written as before."""

import shlex

import msgspec

from excise.action import Action, Batch, Command, Exec, Shell
from excise.meter.records import ShellMode

SESSION = "main"


def in_mode(action: Action, mode: ShellMode) -> Action:
    """`action` as it is in this shell mode; `exec` leaves it as the workload says."""
    if mode == "exec":
        return action
    if isinstance(action, Batch):
        return msgspec.structs.replace(action, actions=tuple(in_mode(one, mode) for one in action.actions))
    return _command(action, mode) if isinstance(action, Exec | Shell) else action


def _command(command: Command, mode: ShellMode) -> Command:
    script = shlex.join(command.argv) if isinstance(command, Exec) else command.script
    common = {name: getattr(command, name) for name in ("cwd", "env", "stdin", "timeout_s", "user", "pty", "merge", "keep")}
    match mode:
        case "login":
            return Exec(("bash", "-lc", script), **common)
        case "session":
            return Shell(script, session=SESSION, **common)
        case _:
            # A session of the workload's own stays one: its directory and variables are part of the work.
            return Shell(script, session=command.session if isinstance(command, Shell) else None, **common)
