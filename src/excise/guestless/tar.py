"""Directories in and out as tar streams, by the sandbox's own tar."""

import asyncio
import errno
import os
from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol

from excise.action import Exec, Exit, Output
from excise.guestless.files import error_of, script
from excise.guestless.wrapper import plain
from excise.handles import finish
from excise.substrate import Process

_LONGEST_REASON_BYTES = 2000

_UNPACK = """
make_dirs "$1"
[ -w "$1" ] && [ -x "$1" ] || refused "$1"
exec tar -xf - -C "$1"
"""

_PACK = """
[ -e "$1" ] || [ -L "$1" ] || absent "$1"
path=$1
while [ "$path" != / ] && [ "${path%/}" != "$path" ]; do path=${path%/}; done
case ${path##*/} in '' | . | ..) path=$(cd "$path" && pwd -P) ;; esac
parent "$path"
name=${path##*/}
exec tar -cf - -C "$up" -- "${name:-.}"
"""


class Starts(Protocol):
    """A Handle, as far as this module needs one."""

    async def start(self, action: Exec) -> Process: ...


async def upload(handle: Starts, path: str, tar: AsyncIterable[bytes]) -> None:
    """Unpack a tar stream into the directory `path`, which is made if it is not there."""
    process = await handle.start(script(_UNPACK, plain(path)))
    failures: list[Exception] = []
    feeding = asyncio.create_task(_feed(process, tar, failures))
    try:
        await _finished(process, path)
    except BaseException:
        await finish(process.kill())
        if not failures:
            raise
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])
    if failures:
        raise failures[0]


async def _finished(process: Process, path: str) -> None:
    said = bytearray()
    async for event in process.events():
        if isinstance(event, Output):
            said += event.data[: _LONGEST_REASON_BYTES - len(said)]
        elif not event.observation.ok:
            raise _failure(event, said, path)


async def _feed(process: Process, tar: AsyncIterable[bytes], failures: list[Exception]) -> None:
    try:
        async for piece in tar:
            await process.write(piece)
        await process.close_stdin()
    except BrokenPipeError:
        return  # it ended early: its exit says why
    except Exception as error:  # noqa: BLE001 - the caller's own stream failed: it is raised where the caller sees it
        failures.append(error)
        await process.kill()  # a tar cut short must not look like a whole one


async def download(handle: Starts, path: str) -> AsyncIterator[bytes]:
    """`path` as a tar stream, its names relative to its parent."""
    process = await handle.start(script(_PACK, plain(path)))
    said = bytearray()
    ended = False
    try:
        await process.close_stdin()
        async for event in process.events():
            if isinstance(event, Exit):
                ended = True
                if not event.observation.ok:
                    raise _failure(event, said, path)
            elif event.stream == "stdout":
                yield event.data
            else:
                said += event.data[: _LONGEST_REASON_BYTES - len(said)]
    finally:
        if not ended:
            await process.kill()


def _failure(event: Exit, said: bytearray, path: str) -> OSError:
    number = error_of(event.observation.exit_code)
    if number is not None:
        return OSError(number, os.strerror(number), path)
    reason = " ".join(said.decode("utf-8", "replace").split()) or event.observation.end.value
    return OSError(errno.EIO, f"tar failed inside the sandbox: {reason}", path)
