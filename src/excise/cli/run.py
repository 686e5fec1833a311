"""`excise run`: one command in a fresh sandbox, with live output and the command's own exit code."""

import asyncio
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.action import KEEP_ALL, Command, Exec, Observation, Shell
from excise.api import connect
from excise.cli import standard_input, terminal
from excise.cli.sentences import describe
from excise.errors import SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec

MACHINERY_FAILED = 125
"""As `docker run` has it: a program's own code is seldom this."""

_CLOSING_S = 600.0
"""How much longer than the command its sandbox is leased."""

app = App(
    name="run",
    help_epilogue="""\
Exit code: the command's own (128 + n for signal n); 124 when it timed out; 125 when the machinery failed and not the \
command; 2 when the request is wrong.

Examples:
  excise run local -- python3 -c 'print(6 * 7)'
  excise run docker --image excise/base -- pytest --version
  echo hello | excise run bubblewrap --timeout 5 -- tr a-z A-Z
  excise run namespace --keep-on-failure -- pytest -q
  excise run chroot --shell -- 'cd /usr && ls | wc -l'""",
)


@app.default
def run(
    address: str,
    /,
    *command: str,
    image: str = "host",
    workdir: str | None = None,
    timeout: float = 3600.0,
    shell: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    keep_on_failure: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Run one command in a fresh sandbox; piped stdin reaches it.

    Parameters
    ----------
    address
        The substrate.
    command
        The program and its arguments, after --.
    image
        The root filesystem: host, a name from `excise image list`, or a tar file.
    workdir
        Where the command starts; the image's own directory if left out.
    timeout
        Seconds the command may take.
    shell
        Join the words and run them as a shell script.
    keep_on_failure
        Where the command fails, keep its sandbox so that `excise shell` can look in, until `excise rm` or Ctrl-C.
    """
    if not command:
        raise SpecError("there is no command to run: say it after --, as in `excise run local -- true`")
    if not timeout > 0:
        raise SpecError(f"--timeout {timeout:g} leaves no time: give a number of seconds above 0")
    action = Shell(" ".join(command)) if shell else Exec(command)
    action = msgspec.structs.replace(action, timeout_s=timeout, keep=KEEP_ALL)
    try:
        seen = asyncio.run(_run(address, Spec(image=image, workdir=workdir), action, timeout + _CLOSING_S, keep_on_failure))
    except _Failed as failed:
        seen = failed.seen
    except (SandboxLost, SubstrateError) as error:
        describe(error)
        return MACHINERY_FAILED
    return terminal.exit_code(seen, timeout)


class _Failed(Exception):  # noqa: N818 - what it says of the command
    """The command has failed: raised so that its sandbox knows."""

    def __init__(self, seen: Observation) -> None:
        super().__init__()
        self.seen = seen


async def _run(address: str, spec: Spec, action: Command, ttl_s: float, keep: bool) -> Observation:
    async with connect(address) as substrate:
        streams = (await substrate.probe()).stream
        async with Sandbox(substrate, spec, ttl_s=ttl_s, keep_on_failure=keep) as box:
            seen = await (_streamed(box, action) if streams else _whole(box, action))
            if not seen.ok:
                raise _Failed(seen)
            return seen


async def _streamed(box: Sandbox, action: Command) -> Observation:
    """Output and stdin as they come."""
    return await terminal.joined(await box.start(action))


async def _whole(box: Sandbox, action: Command) -> Observation:
    """For a substrate without streams: stdin is read first, and the output comes at the end."""
    data = b"".join([chunk async for chunk in standard_input.chunks()])
    seen = await box.run(msgspec.structs.replace(action, stdin=data))
    terminal.put("stdout", seen.stdout)
    terminal.put("stderr", seen.stderr)
    return seen
