"""The process: doors by descriptor over one socket from its client, whose end is its own."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from excise.host import packets
from excise.network.door import Door
from excise.network.policy import Policy

NOBODY = 65534
LOOKUP_THREADS = 64


class Proxy:
    """The doors of one substrate's sandboxes."""

    def __init__(self, control: socket.socket, most_connections: int) -> None:
        control.setblocking(False)
        self._control = control
        self._everybody = asyncio.Semaphore(most_connections)
        self._doors: dict[int, Door] = {}
        self._working: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the client is gone."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(self._control, self._hear, over)
        await over

    def _hear(self, over: "asyncio.Future[None]") -> None:
        """Take one request. They are begun in their order, and a door's own are done in it."""
        try:
            packet = packets.receive(self._control)
        except BlockingIOError:
            return
        if packet is None:
            asyncio.get_running_loop().remove_reader(self._control)
            over.set_result(None)
            return
        note, descriptors = packet
        if note["verb"] == "serve":
            self._open(note, descriptors)
            return
        work = asyncio.create_task(self._do(note, descriptors))
        self._working.add(work)
        work.add_done_callback(self._working.discard)

    def _open(self, note: dict[str, Any], descriptors: list[int]) -> None:
        if len(descriptors) != 2:  # the kernel drops those for which this process has no room
            for descriptor in descriptors:
                os.close(descriptor)
            self._answer(note, error="the proxy has no descriptors left")
            return
        body, listener = descriptors
        policy = Policy.unpacked(packets.read_body(body))
        self._doors[note["door"]] = Door(socket.socket(fileno=listener), policy, self._everybody)

    async def _do(self, note: dict[str, Any], descriptors: list[int]) -> None:
        """Change or close a door, and say so."""
        if note["verb"] == "change":
            if not descriptors:
                self._answer(note, error="the proxy has no descriptors left")
                return
            policy = Policy.unpacked(packets.read_body(descriptors[0]))
            if note["door"] in self._doors:
                await self._doors[note["door"]].change(policy)
        elif note["door"] in self._doors:
            await self._doors.pop(note["door"]).close()
        self._answer(note)

    def _answer(self, note: dict[str, Any], error: str | None = None) -> None:
        # A client that has so many answers unread that there is no room for one more has stopped caring.
        with contextlib.suppress(OSError):
            packets.tell(self._control, {"door": note["door"], "verb": note["verb"], "error": error})


def main(control: int) -> None:
    """The whole life of the process, given the descriptor of its client's socket."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    most = _descriptors()
    _be_nobody()
    # A quarter: a connection has two descriptors, and listeners and those about to be served need the other half.
    asyncio.run(_live(control, most // 4))


async def _live(control: int, most_connections: int) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_tell_without_contents)
    loop.set_default_executor(ThreadPoolExecutor(LOOKUP_THREADS))
    await Proxy(socket.socket(fileno=control), most_connections).serve()
    os._exit(0)  # at once: threads that still wait for a name server would hold up an ordinary end


def _descriptors() -> int:
    """As many as this process may have, from now on."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _be_nobody() -> None:
    """Root's rights are not needed to read what sandboxed programs send. (In a user namespace nobody may be unknown.)"""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)


def _tell_without_contents(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error of ours, as its kind and place: its text might hold what a sandbox sent."""
    error = context.get("exception")
    at = error.__traceback__ if error is not None else None
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
    sys.stderr.write(f"excise proxy: {type(error).__name__}{place}\n")
