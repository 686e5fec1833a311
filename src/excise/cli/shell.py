"""`excise shell`: a shell, or one command, in a sandbox that another process owns."""

import asyncio
import os
from typing import Annotated

from cyclopts import App, Parameter

from excise.action import KEEP_ALL, Exec, Observation, Pty
from excise.cli import terminal
from excise.cli.sentences import describe
from excise.errors import SandboxLost, SubstrateError

MACHINERY_FAILED = 125
_SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")

app = App(
    name="shell",
    help_epilogue="""\
It is one more action of that sandbox: with its user, rights, limits and variables. When it ends, or you leave, whatever it \
started ends too; nothing else in the sandbox does. At a terminal every key goes inside, Ctrl-C too.

Exit code: the command's own (128 + n for signal n); 125 when the machinery failed; 2 when there is no such sandbox.

Examples:
  excise shell 3f2a9c04d1b7
  excise shell 3f2a9c04d1b7 -- ps aux
  excise shell 3f2a9c04d1b7 --user root -- cat /etc/shadow""",
)


@app.default
def shell(
    id: str,
    /,
    *command: str,
    user: str | None = None,
    workdir: str | None = None,
    no_terminal: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Run a shell, or a command, in a live sandbox.

    Parameters
    ----------
    id
        The sandbox, as `excise ps` lists it; enough of its id to tell it from others.
    command
        The program and its arguments, after --; a shell if left out.
    user
        Whom to run as; the sandbox's own user if left out.
    workdir
        Where it starts; the sandbox's own directory if left out.
    no_terminal
        Use pipes even where this is a terminal.
    """
    window = None if no_terminal else terminal.size()
    env = {"TERM": os.environ["TERM"]} if window is not None and os.environ.get("TERM") else {}
    action = Exec(command or _SHELL, cwd=workdir, env=env, user=user, pty=window, keep=KEEP_ALL)
    try:
        seen = asyncio.run(_shell(id, action, window))
    except (SandboxLost, SubstrateError) as error:
        describe(error)
        return MACHINERY_FAILED
    return terminal.exit_code(seen)


async def _shell(given: str, action: Exec, window: Pty | None) -> Observation:
    from excise.looking.find import opened  # noqa: PLC0415 - `excise shell --help` does not pay for it

    async with opened(given) as handle:
        process = await handle.start(action)
        try:
            return await terminal.joined(process, terminal=window is not None)
        finally:
            await process.kill()
