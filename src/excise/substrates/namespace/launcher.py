"""Our end of the launcher: a process that makes sandboxes on request, so that ours never forks; and what becomes of them."""

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from excise.errors import CreateError, SandboxLost, SpecError, SubstrateError
from excise.guest.programs import program
from excise.host.sandboxes import owner_of
from excise.host.writable import Writable
from excise.substrates.namespace import cgroups, denial, request
from excise.substrates.namespace.place import DIED, Place, close_all
from excise.substrates.namespace.request import Answer, Create

_MOST_DESCRIPTORS = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * struct.calcsize("i"))
_END_S = 10.0
"""How long a launcher may take to end its sandboxes and itself."""


class Launcher:
    """A launcher process. It lives as long as the substrate that started it, and its sandboxes no longer than it."""

    def __init__(self) -> None:
        """Start it. Whether sandboxes can be made here, it finds out by trying, and `hello` tells."""
        self._program = program("excise-launch")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [self._program.name],  # PID 1 of every sandbox shows it: not where we are installed, which names our user
                    executable=self._program,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # PID 1 of every sandbox inherits them: nothing of ours may be among them
                    cwd="/",
                    env={},
                    start_new_session=True,  # Ctrl-C is ours to handle; it goes when we go
                )
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise denial.not_started(error) from None
                raise
        ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._writable = Writable(ours.fileno())
        self._pidfd = os.pidfd_open(self._process.pid)
        # Its sandboxes' control groups are named after it: they are nobody's once it is gone.
        self._owner = owner_of(self._process.pid)
        self.home = f"launcher-{self._owner}-{uuid.uuid4().hex[:12]}"
        """What its own control group is called, where sandboxes have theirs in it (v2)."""
        self._homes: set[Path] = set()
        self._places: dict[int, Place] = {}
        self._last_id = 0
        self._opening: dict[int, list[asyncio.Future[int]]] = {}
        self._hello: asyncio.Future[Answer] = self._loop.create_future()
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        self.dead = False
        self._loop.add_reader(ours.fileno(), self._receive)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_elsewhere(self) -> bool:
        """Whether it was started in another event loop than the one that runs now."""
        return self._loop is not asyncio.get_running_loop()

    def name(self) -> str:
        """For a sandbox of this launcher; no other has it."""
        return f"namespace-{self._owner}-{uuid.uuid4().hex[:12]}"

    async def hello(self) -> Answer:
        """What it found by trying. Raises SubstrateError if no sandbox can be made here."""
        return await asyncio.shield(self._hello)

    # ---- sandboxes

    async def create(self, asked: Create, link: int, shell: int | None) -> Place:
        """Ask for a sandbox whose guest serves `link`. It is in the making when this returns; `ready` tells."""
        place = Place(self.number(), self._loop, listens=asked.listen_port is not None)
        packet = request.create(place.id, asked, shell=shell is not None)
        if len(packet) > request.MAX_PACKET:
            raise SpecError(f"the spec's mounts take {len(packet)} bytes to say: mount a directory above them instead")
        self._places[place.id] = place
        self._homes.update(Path(group.directory).parent for group in asked.cgroups if group.controllers is not None)
        try:
            await self._send(packet, [link] if shell is None else [link, shell])
        except BaseException:
            self._left(place)  # it was not sent
            raise
        return place

    async def close(self, place: Place) -> None:
        """End a sandbox, made or in the making; nothing of it is left when this returns."""
        if not place.gone.done() and not self.dead:
            with contextlib.suppress(SubstrateError):  # its death is the end of the sandbox as well
                await self._send(request.close(place.id), ())
        await asyncio.shield(place.gone)

    # ---- roots

    def number(self) -> int:
        """For a sandbox or a layer that comes to be; nothing else of this launcher's has it."""
        self._last_id += 1
        return self._last_id

    async def root(self, place: Place, asked: Create, seal: int | None = None) -> asyncio.Future[Answer]:
        """Offer a sandbox another root; what becomes of it is the future's. `seal`: its upper becomes the layer of this id."""
        if place.rooting is not None:
            await asyncio.shield(place.rooting)  # one at a time
        place.rooting = answer = self._loop.create_future()
        try:
            await self._send(request.root(place.id, asked, seal=seal), ())
        except CreateError as error:
            place.rooting = None
            raise SandboxLost(str(error)) from None
        if place.gone.done():
            place.left()  # nobody answers
        return answer

    async def drop(self, layer: int) -> None:
        """Let go of a layer: sandboxes over it live on, and none is made of it any more."""
        with contextlib.suppress(SubstrateError):  # it went with the launcher
            await self._send(request.drop(layer), ())

    async def open(self, id: int) -> int:
        """The directory with what was written in a sandbox, or is in a layer: a descriptor, the caller's."""
        return await self._given(id, request.open_upper(id))

    async def make(self, layer: int) -> int:
        """A layer with this id, empty: its directory, to be filled before anything is made of it."""
        return await self._given(layer, request.make(layer))

    async def _given(self, id: int, packet: bytes) -> int:
        opening: asyncio.Future[int] = self._loop.create_future()
        self._opening.setdefault(id, []).append(opening)
        try:
            await self._send(packet, ())
        except CreateError as error:
            raise SandboxLost(str(error)) from None
        return await opening

    def _opened(self, answer: Answer, descriptors: list[int]) -> None:
        opening = self._opening[answer.id].pop(0)
        if not self._opening[answer.id]:
            del self._opening[answer.id]
        if opening.done():  # who asked gave up
            close_all(descriptors)
        elif descriptors:
            opening.set_result(descriptors[0])
        else:
            opening.set_exception(SandboxLost("what was written cannot be looked at: the sandbox or the layer is gone"))

    async def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        while True:
            if self.dead:
                raise CreateError(f"{DIED}; try again")
            try:
                socket.send_fds(self._socket, [packet], descriptors) if descriptors else self._socket.send(packet)
            except BlockingIOError:
                await self._writable.wait()
            except OSError as error:
                raise CreateError(f"{DIED} or takes no requests ({error.strerror}); try again") from None
            else:
                return

    # ---- what it says

    def _receive(self) -> None:
        while not self.dead:
            try:
                packet, ancillary, _, _ = self._socket.recvmsg(request.MAX_PACKET, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                packet, ancillary = b"", []
            if not packet:
                self._die()
                return
            self._take(request.answer(packet), _descriptors(ancillary))

    def _take(self, answer: Answer, descriptors: list[int]) -> None:
        place = self._places.get(answer.id)
        match answer.type:
            case request.HELLO if not self._hello.done():
                self._hello.set_result(answer)
            case request.FAILED if answer.id == 0:
                self._refused(denial.cannot_run(answer, denial.facts(str(self._program))))
            case request.READY if place is not None:
                place.answered(descriptors)
                return
            case request.FAILED if place is not None:
                place.failed(denial.not_made(answer, denial.facts(str(self._program))))
                self._left(place)
            case request.GONE if place is not None:
                self._left(place)
            case request.ROOTED if place is not None:
                place.rooted(answer)
            case request.OPENED if self._opening.get(answer.id):
                self._opened(answer, descriptors)
                return
            case _:
                pass  # of one that is gone already
        close_all(descriptors)

    def _left(self, place: Place) -> None:
        self._places.pop(place.id, None)
        place.left()

    def _refused(self, error: SubstrateError) -> None:
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()  # as above

    # ---- its end

    def _die(self) -> None:
        """Its socket has ended: so has it, and with it every sandbox it made."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._socket.fileno())
        self._writable.forget()
        self._socket.close()
        self._refused(SubstrateError(f"{DIED} before it could say what it can do here; `dmesg` may tell why"))
        places, self._places = self._places, {}
        for place in places.values():
            place.orphaned()
        opening, self._opening = self._opening, {}
        for waiting in (one for several in opening.values() for one in several if not one.done()):
            waiting.set_exception(SandboxLost(DIED))

    def _reap(self) -> None:
        self._receive()  # its last words
        self._die()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()  # it has ended: this waits for nothing
        self._reaped.set_result(None)

    async def end(self) -> None:
        """End it, and with it every sandbox that is left. Twice is fine."""
        self._die()
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.shield(self._reaped)
        except TimeoutError:
            self._process.kill()  # stopped or stuck: the kernel ends its sandboxes with it
            await asyncio.shield(self._reaped)
        homes, self._homes = self._homes, set()
        for home in homes:
            await asyncio.to_thread(cgroups.leave, home)

    def abandon(self) -> None:
        """End it from another event loop, when its own is over and hears nothing any more."""
        if self.dead:
            return
        self.dead = True
        self._socket.close()
        os.close(self._pidfd)
        self._process.kill()
        self._process.wait()  # a moment: what it has to do for its death, the kernel does
        for home in self._homes:
            cgroups.leave(home)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += (number for (number,) in struct.iter_unpack("i", data[: len(data) - len(data) % struct.calcsize("i")]))
    return found
