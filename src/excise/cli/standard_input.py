"""What is piped into this process, as it comes, without a thread that would outlive its use."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator

_CHUNK_BYTES = 1 << 16


async def chunks(*, terminal: bool = False) -> AsyncGenerator[bytes]:
    """Pieces of stdin until its end; none at all where it is closed, or a `terminal` that was not asked for."""
    if sys.stdin is None or sys.stdin.closed or (sys.stdin.isatty() and not terminal):  # pyright: ignore[reportUnnecessaryComparison] - None under `<&-`
        return
    descriptor = sys.stdin.fileno()
    while True:
        await _readable(descriptor)
        # Readable means that one read does not block; O_NONBLOCK would change the pipe for its other holders too.
        if not (data := os.read(descriptor, _CHUNK_BYTES)):
            return
        yield data


async def _readable(descriptor: int) -> None:
    """Watch only while we wait: a pipe that is full and not read would wake the loop again and again."""
    loop = asyncio.get_running_loop()
    came = loop.create_future()

    def wake() -> None:
        if not came.done():
            came.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except PermissionError:
        return  # epoll takes no regular files and no /dev/null: reading those never waits
    try:
        await came
    finally:
        loop.remove_reader(descriptor)
