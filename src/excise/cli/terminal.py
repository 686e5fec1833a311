"""A running command at this process's own terminal, or at its pipes: what it prints, what is typed, and the window's size."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from excise.action import End, Exit, Observation, Output, Pty
from excise.cli import standard_input
from excise.cli.sentences import say
from excise.errors import SandboxLost
from excise.substrate import Process

TIMED_OUT = 124
"""As timeout(1) has it: a program's own code is seldom this."""


def size() -> Pty | None:
    """This terminal's, if both ends of us are one."""
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        return None
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Pty(rows=rows or 24, columns=columns or 80)


def _is_terminal(stream: object) -> bool:
    return stream is not None and stream.isatty()  # pyright: ignore - None under `<&-`


async def joined(process: Process, *, terminal: bool = False) -> Observation:
    """Pass output and input on until the command ends; as a `terminal`, every key goes to it, Ctrl-C too."""
    with _raw(process) if terminal else contextlib.nullcontext():
        feeding = asyncio.create_task(_feed(process, terminal=terminal))
        try:
            async for event in process.events():
                match event:
                    case Output(stream, data):
                        put(stream, data)
                    case Exit(observation):
                        return observation
            raise SandboxLost("the command's output ended without its exit")
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _feed(process: Process, *, terminal: bool) -> None:
    async for data in standard_input.chunks(terminal=terminal):
        await process.write(data)
    await process.close_stdin()


@contextmanager
def _raw(process: Process) -> Generator[None]:
    """The terminal hands keys on as they are, and is as it was afterwards, however this ends."""
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    resizing: set[asyncio.Task[None]] = set()

    def resized() -> None:
        if (now := size()) is not None:
            task = loop.create_task(process.resize(now.rows, now.columns))
            resizing.add(task)
            task.add_done_callback(lambda done: (resizing.discard(done), done.cancelled() or done.exception()))

    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # and not TCSAFLUSH: what was typed ahead is not lost
        loop.add_signal_handler(signal.SIGWINCH, resized)
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def put(stream: str, data: bytes) -> None:
    out = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
    out.write(data)
    out.flush()


def exit_code(seen: Observation, timeout_s: float | None = None) -> int:
    """What this process exits with for how the command did."""
    match seen.end:
        case End.EXITED:
            return seen.exit_code or 0
        case End.TIMED_OUT:
            say(f"the command was killed after {timeout_s or 0:g} s; --timeout gives it longer")
            return TIMED_OUT
        case End.SIGNALED:
            return 128 + (seen.signal or 0)
        case _:
            say(f"the command ran {seen.end.value.replace('_', ' ')}: its sandbox's own limit")
            return 128 + 9
