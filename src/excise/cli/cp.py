"""`excise cp`: files and directories into a live sandbox and out of it."""

import asyncio
import os
import posixpath
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

from cyclopts import App, Parameter

from excise.action import Stat
from excise.cli import standard_input
from excise.cli.sentences import plain, say
from excise.errors import SpecError
from excise.substrate import Handle

_PIECE_BYTES = 1 << 18

app = App(
    name="cp",
    help_epilogue="""\
One side is ID:/PATH, the other a path here, or - for a tar stream. Where the target is a directory, the copy goes into it, \
else it gets the target's name. Modes, times and links are kept, owners are not; a link is copied and never followed. What \
comes out of a sandbox cannot be written outside of the target, and no device or set-user-ID bit comes with it.

Examples:
  excise cp 3f2a9c04d1b7:/srv/report.html .
  excise cp tests 3f2a9c04d1b7:/srv
  excise cp 3f2a9c04d1b7:/var/log - | tar tv""",
)


_Side = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""A lone - is a side of its own."""


class Place(NamedTuple):
    """One side: `id` is None for this machine."""

    id: str | None
    path: str


@app.default
def cp(source: _Side, target: _Side, /) -> int:
    """Copy a file or a directory into or out of a live sandbox.

    Parameters
    ----------
    source
        What is copied: ID:/PATH, a path here, or - for a tar stream on stdin.
    target
        Where it goes: ID:/PATH, a path here, or - for a tar stream on stdout.
    """
    there, here = place(source), place(target)
    if (there.id is None) == (here.id is None):
        raise SpecError("one side must be in a sandbox: `excise cp ID:/path .` or `excise cp file ID:/path`")
    if there.id is None and there.path != "-" and not os.path.lexists(there.path):
        raise SpecError(f"{there.path} is not there")
    asyncio.run(_out(there, here.path) if there.id is not None else _in(there.path, here))
    return 0


def place(text: str) -> Place:
    """ID:/PATH is in a sandbox; ./a:/b, and whatever has no :/, is here."""
    given, colon, path = text.partition(":")
    if not colon or not path.startswith("/") or "/" in given or not given:
        return Place(None, text)
    return Place(given, posixpath.normpath(path))


# ---- out


async def _out(there: Place, here: str) -> None:
    from excise.looking.find import opened  # noqa: PLC0415 - `excise cp --help` does not pay for it

    assert there.id is not None
    async with opened(there.id) as handle:
        if here == "-":
            async for piece in handle.download(there.path):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        directory, rename = _goes_to(here, posixpath.basename(there.path))
        await _unpacked(handle.download(there.path), directory, rename)


def _goes_to(here: str, name: str) -> tuple[str, str | None]:
    """The directory it is unpacked in, and what it is called there."""
    if Path(here).is_dir():
        return here, name or None
    directory, rename = os.path.split(here.rstrip("/"))
    if here.endswith("/") or not Path(directory or ".").is_dir():
        raise SpecError(f"{here} is not in a directory that is there: make it first, or name another target")
    if not name:
        raise SpecError(f"the whole root is copied into a directory: make {here} first")
    return directory or ".", rename


async def _unpacked(tar: AsyncIterator[bytes], directory: str, rename: str | None) -> None:
    from excise.looking.trees import Unpacker  # noqa: PLC0415 - see above

    def work(stream: IO[bytes]) -> None:
        with Unpacker(directory, rename=rename, skipped=lambda text: say(plain(text))) as unpacker:
            unpacker.unpack(stream)

    ours, working = _beside(work, "rb")
    try:
        async for piece in tar:
            try:
                await asyncio.get_running_loop().sock_sendall(ours, piece)
            except ConnectionError:
                break  # it has failed, and says why
    except BaseException:
        ours.close()
        await asyncio.wait((working,))
        working.exception()  # which is that the stream broke off
        raise
    finally:
        if isinstance(tar, AsyncGenerator):
            await tar.aclose()  # of one that was left, its connection is in use still
    ours.close()
    await working


# ---- in


async def _in(here: str, there: Place) -> None:
    from excise.looking.find import opened  # noqa: PLC0415 - see above
    from excise.looking.trees import pack  # noqa: PLC0415 - see above

    assert there.id is not None
    async with opened(there.id) as handle:
        directory, name = await _lands_in(handle, there.path, _name_of(here))
        if here == "-":
            await handle.upload(there.path, standard_input.chunks())
            return
        owner = (await handle.run(Stat(f"{directory}/."))).files
        if not owner:
            raise SpecError(f"{directory} is no directory in the sandbox: make it first, or name another target")
        uid, gid = owner[0].uid, owner[0].gid
        ours, working = _beside(lambda stream: pack(here, name, stream, uid=uid, gid=gid), "wb")
        try:
            await handle.upload(directory, _received(ours))
        finally:
            ours.close()
            await asyncio.wait((working,))
        working.result()


def _name_of(here: str) -> str:
    """Also of `.` and `..`; but a link is called by its own name."""
    return Path(os.path.abspath(here)).name  # noqa: PTH100 - which follows no link


async def _lands_in(handle: Handle, path: str, name: str) -> tuple[str, str]:
    """The directory inside that it goes to, and its name there."""
    seen = await handle.run(Stat(f"{path}/."))
    return (path, name) if seen.errno is None else (posixpath.dirname(path), posixpath.basename(path))


async def _received(ours: socket.socket) -> AsyncIterator[bytes]:
    while piece := await asyncio.get_running_loop().sock_recv(ours, _PIECE_BYTES):
        yield piece


def _beside(work: Callable[[IO[bytes]], None], mode: Literal["rb", "wb"]) -> tuple[socket.socket, "asyncio.Future[None]"]:
    """`work` in a thread, with a stream whose other end is ours."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def run() -> None:
        with open(theirs.detach(), mode) as stream:  # noqa: PTH123 - a descriptor
            try:
                work(stream)
            except (BrokenPipeError, ConnectionResetError):
                return  # nobody wants the rest: who broke off says why

    return ours, asyncio.get_running_loop().run_in_executor(None, run)
