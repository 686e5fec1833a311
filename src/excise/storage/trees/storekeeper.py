"""The storekeeper from this side: work on trees of files, done by a process beside ours that may read whoever's files."""

import asyncio
import base64
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import excise
from excise.errors import CapacityError, ExciseError, SpecError, SubstrateError
from excise.storage.background import to_end
from excise.storage.trees.diff import MOST_BYTES, Found, Side
from excise.storage.trees.process import MOST_DESCRIPTORS, receive
from excise.storage.trees.whole import Usage

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from excise.storage.trees.process import main
main(int(sys.argv[2]))
"""
_DIED = "the process that works on files' trees died: try again"


class Storekeeper:
    """Trees are given by descriptors of their directories, which stay the caller's. Use it in one event loop, as a context.

    The process is started by the first request; one that died is followed by another. A caller that is cancelled waits until
    what it asked for has stopped, so that nothing is written any more where it asked for it.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the process; what it was asked for fails. Twice is fine."""
        self._forget()
        await to_end(self._reap())

    def abandon(self) -> None:
        """End the process from outside of the event loop it was used in, which is over, and whoever waited with it."""
        control, self._socket = self._socket, None
        if control is not None:
            control.close()
        self._waiting.clear()
        while self._processes:
            self._processes.pop().wait()

    # ---- what it does

    async def digest(self, tree: int) -> str:
        """See `trees.digest`."""
        return await self._ask("digest", [tree])

    async def usage(self, tree: int) -> Usage:
        return Usage(*await self._ask("usage", [tree]))

    async def remove(self, tree: int) -> None:
        """All that is in it, not the directory itself."""
        await self._ask("remove", [tree])

    async def copy(self, source: int, target: int, most_bytes: int | None = None) -> int:
        """Into an empty directory; how many bytes that took."""
        return await self.squash([source], target, most_bytes)

    async def squash(self, layers: Sequence[int], target: int, most_bytes: int | None = None) -> int:
        """Layers, topmost first, into one that can take their place; how many bytes that took."""
        return await self._ask("squash", [*layers, target], most_bytes=most_bytes)

    async def diff(
        self, tops: Sequence[int], bases: Sequence[int], *, contents: Collection[Side] = (), most_bytes: int = MOST_BYTES
    ) -> list[Found]:
        """See `storage.diff`."""
        found = await self._ask("diff", [*tops, *bases], tops=len(tops), contents=list(contents), most_bytes=most_bytes)
        return [
            Found(os.fsencode(path), kind, before_mode, mode, _bytes(before), _bytes(after))
            for path, kind, before_mode, mode, before, after in found
        ]

    # ---- asking

    async def _ask(self, verb: str, given: Sequence[int], **more: object) -> Any:
        if len(given) > MOST_DESCRIPTORS:
            raise SubstrateError(
                f"{len(given)} layers at once are more than the {MOST_DESCRIPTORS} that can be worked on: squash some"
            )
        self._last_id += 1
        number = self._last_id
        try:
            answer = await self._send(number, {"verb": verb, **more}, given)
            said = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if number in self._waiting:
                await to_end(self._stop(number))
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in said:
            raise _raised(verb, said)
        return said["done"]

    async def _send(self, number: int, asked: dict[str, object], given: Sequence[int]) -> "asyncio.Future[dict[str, Any]]":
        """Hand a request over; its answer will come. Who is cancelled before that has asked for nothing."""
        data = json.dumps({"id": number, "descriptors": len(given), **asked}).encode()
        async with self._turn:
            control = self._running()
            while True:
                try:
                    socket.send_fds(control, [data], list(given))
                except BlockingIOError:
                    await _writable(control)
                except OSError as error:
                    raise _not_sent(error) from None
                else:
                    loop = asyncio.get_running_loop()
                    return self._waiting.setdefault(number, loop.create_future())

    async def _stop(self, number: int) -> None:
        """Have what was asked for end, and wait until it has."""
        with contextlib.suppress(ExciseError):
            answer = self._waiting[number]
            if not answer.done():
                await self._send(number, {"verb": "stop"}, [])
                await asyncio.wait([answer])

    # ---- the process

    def _running(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.ExitStack() as undo:
                undo.callback(ours.close)
                ours.setblocking(False)
                self._processes.append(_start(theirs.fileno()))
                undo.pop_all()
            self._socket = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._receive, ours)
        return self._socket

    def _receive(self, control: socket.socket) -> None:
        try:
            packet = receive(control)
        except BlockingIOError:
            return
        if packet is None:
            self._forget()
            return
        said, given = packet
        for descriptor in given:
            with open(descriptor, "rb") as body:  # noqa: PTH123 - it is a descriptor
                body.seek(0)
                said = json.load(body)
        answer = self._waiting.get(said["id"])
        if answer is not None and not answer.done():
            answer.set_result(said)

    def _forget(self) -> None:
        """The process is gone, or is to go: it does so when its socket is closed."""
        control, self._socket = self._socket, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control.fileno())
            control.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": "died"})

    async def _reap(self) -> None:
        while self._processes:
            await asyncio.to_thread(self._processes.pop().wait)


def _start(control: int) -> "subprocess.Popen[bytes]":
    package = str(Path(excise.__file__).parents[1])
    # As host/beside.py starts its own: neither the user's variables nor site packages.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, package, str(control)],
        pass_fds=(control,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,  # Ctrl-C is ours to handle; it goes when we go
    )


async def _writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.add_writer(control.fileno(), lambda: woken.done() or woken.set_result(None))
    try:
        await woken
    finally:
        loop.remove_writer(control.fileno())


def _not_sent(error: OSError) -> Exception:
    if error.errno == errno.ETOOMANYREFS:
        return CapacityError("too many descriptors are on their way: raise `ulimit -n`")
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        return SubstrateError(_DIED)
    return error  # a descriptor that is none: the caller's mistake


def _raised(verb: str, said: dict[str, Any]) -> ExciseError:
    match said["error"]:
        case "tree":
            return SpecError(said["text"])
        case "os" if said["errno"] in (errno.ENOSPC, errno.EDQUOT):
            return SubstrateError("the disk is full: free some space there, or set EXCISE_HOME to a larger one")
        case "os" if said["errno"] in (errno.EMFILE, errno.ENFILE):
            return CapacityError("the process that works on files' trees has no descriptor left: raise `ulimit -n`")
        case "os":
            where = f" ({said['name']!r})" if said.get("name") else ""
            return SubstrateError(f"a tree of files could not be worked on: {verb}: {said['text']}{where}")
        case "ours":
            return SubstrateError(f"the storekeeper failed at {verb}, which is a bug in Excise: {said['text']}")
        case _:
            return SubstrateError(_DIED)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
