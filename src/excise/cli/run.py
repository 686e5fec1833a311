"""`excise run`: one command in a fresh sandbox, with live output and the command's own exit code."""

import asyncio
import sys
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise.action import KEEP_ALL, Command, End, Exec, Exit, Observation, Output, Shell
from excise.api import connect
from excise.cli import standard_input
from excise.cli.sentences import describe, say
from excise.errors import SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Process

TIMED_OUT = 124
MACHINERY_FAILED = 125
"""As timeout(1) and `docker run` have it: a program's own code is seldom one of these."""

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
    """
    if not command:
        raise SpecError("there is no command to run: say it after --, as in `excise run local -- true`")
    if not timeout > 0:
        raise SpecError(f"--timeout {timeout:g} leaves no time: give a number of seconds above 0")
    action = Shell(" ".join(command)) if shell else Exec(command)
    action = msgspec.structs.replace(action, timeout_s=timeout, keep=KEEP_ALL)
    try:
        seen = asyncio.run(_run(address, Spec(image=image, workdir=workdir), action, timeout + _CLOSING_S))
    except (SandboxLost, SubstrateError) as error:
        describe(error)
        return MACHINERY_FAILED
    return _exit_code(seen, timeout)


async def _run(address: str, spec: Spec, action: Command, ttl_s: float) -> Observation:
    async with connect(address) as substrate:
        streams = (await substrate.probe()).stream
        async with Sandbox(substrate, spec, ttl_s=ttl_s) as box:
            return await (_streamed(box, action) if streams else _whole(box, action))


async def _streamed(box: Sandbox, action: Command) -> Observation:
    """Output and stdin as they come."""
    process = await box.start(action)
    feeding = asyncio.create_task(_feed(process))
    try:
        async for event in process.events():
            match event:
                case Output(stream, data):
                    _put(stream, data)
                case Exit(observation):
                    return observation
        raise SandboxLost("the command's output ended without its exit")
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(process: Process) -> None:
    async for data in standard_input.chunks():
        await process.write(data)
    await process.close_stdin()


async def _whole(box: Sandbox, action: Command) -> Observation:
    """For a substrate without streams: stdin is read first, and the output comes at the end."""
    data = b"".join([chunk async for chunk in standard_input.chunks()])
    seen = await box.run(msgspec.structs.replace(action, stdin=data))
    _put("stdout", seen.stdout)
    _put("stderr", seen.stderr)
    return seen


def _put(stream: str, data: bytes) -> None:
    out = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
    out.write(data)
    out.flush()


def _exit_code(seen: Observation, timeout_s: float) -> int:
    match seen.end:
        case End.EXITED:
            return seen.exit_code or 0
        case End.TIMED_OUT:
            say(f"the command was killed after {timeout_s:g} s; --timeout gives it longer")
            return TIMED_OUT
        case End.SIGNALED:
            return 128 + (seen.signal or 0)
        case _:
            say(f"the command ran {seen.end.value.replace('_', ' ')}: its sandbox's own limit")
            return 128 + 9
