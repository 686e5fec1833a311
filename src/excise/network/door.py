"""One sandbox's way out: its listener, its connections, and what bounds them."""

import asyncio
import contextlib
import errno
import os
import socket
from functools import partial

from excise.network.policy import Address, Policy, Refused
from excise.network.pump import pump
from excise.network.reach import Lookup, look_up, reach
from excise.network.request import PIECE_BYTES, BadRequest, Incoming, Request, http_answer, read_request

CONNECTIONS = 128
"""At once, for one sandbox. Further ones wait in the kernel's queue until one has ended."""
LOOKUPS = 8
"""At once, for one sandbox: a name server that does not answer holds a thread that all sandboxes share."""
HEAD_S = 30.0
"""For the whole request head, however its bytes are spread."""
CONNECT_S = 30.0
"""For the lookup and every address of the name together."""
IDLE_S = 600.0
LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FULL_PAUSE_S = 1.0


class Door:
    """Accepts on a listener inside a sandbox, and connects from where this process is."""

    def __init__(
        self,
        listener: socket.socket,
        policy: Policy,
        everybody: asyncio.Semaphore,
        *,
        lookup: Lookup = look_up,
        head_s: float = HEAD_S,
        connect_s: float = CONNECT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """`everybody`: the connections that all doors together may have."""
        listener.setblocking(False)
        self._listener = listener
        self._policy = policy
        self._everybody = everybody
        self._own = asyncio.Semaphore(CONNECTIONS)
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._lookup = lookup
        self._head_s, self._connect_s, self._idle_s = head_s, connect_s, idle_s
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def change(self, policy: Policy) -> None:
        """From now on this policy; what the old one let through is cut when this returns."""
        self._policy = policy
        await _ended(self._connections)

    async def close(self) -> None:
        """The listener and every connection are closed when this returns."""
        await _ended({self._accepting})
        self._listener.close()
        await _ended(self._connections)

    # ---- accepting

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._own.acquire()
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                self._own.release()
                if error.errno in _FULL:
                    # Nothing tells when the machine has room again; the waiting client stays in the kernel's queue.
                    await asyncio.sleep(_FULL_PAUSE_S)
                continue
            except BaseException:
                self._own.release()
                raise
            connection = asyncio.create_task(self._serve(sock))
            self._connections.add(connection)
            connection.add_done_callback(partial(self._ended_one, sock))

    def _ended_one(self, sock: socket.socket, connection: asyncio.Task[None]) -> None:
        sock.close()  # here, for a task that is cancelled before its first step never gets to do it
        self._connections.discard(connection)
        self._own.release()
        if not connection.cancelled() and (error := connection.exception()) is not None:
            handler = {"message": "a connection ended in an error nobody expected", "exception": error}
            asyncio.get_running_loop().call_exception_handler(handler)

    # ---- one connection

    async def _serve(self, sock: socket.socket) -> None:
        async with self._everybody:
            with contextlib.suppress(OSError):
                if sock.family != socket.AF_UNIX:  # which has no packets to fill
                    # Small writes are a conversation (a TLS handshake): waiting to fill packets would slow each of them.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._converse(sock)

    async def _converse(self, sock: socket.socket) -> None:
        incoming = Incoming(sock)
        try:
            async with asyncio.timeout(self._head_s):
                request = await read_request(incoming)
        except BadRequest as error:
            await _last_words(sock, error.answer)
            return
        except TimeoutError:
            await _last_words(sock, http_answer(408, f"No request came within {self._head_s:g} s"))
            return
        far = await self._reached(sock, request)
        if far is None:
            return
        with far:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._relay(sock, far, request, incoming.rest)

    async def _reached(self, sock: socket.socket, request: Request) -> socket.socket | None:
        """The other end; None, and the client is told, if it cannot be had."""
        where = f"{request.host}:{request.port}"
        try:
            async with asyncio.timeout(self._connect_s):
                return await reach(self._policy, request.host, request.port, self._look_up)
        except Refused as error:
            answer = request.denied(403, f"excise: {error}")
        except TimeoutError:
            answer = request.denied(504, f"excise: {where} did not answer in {self._connect_s:g} s")
        except OSError as error:
            answer = request.denied(502, f"excise: {where} was not reached: {_why(error)}")
        await _last_words(sock, answer)
        return None

    async def _look_up(self, name: str) -> list[Address]:
        """A lookup keeps its place until it is over: who asked may give up, the thread that waits for the answer cannot."""
        await self._lookups.acquire()
        lookup = asyncio.ensure_future(self._lookup(name))
        lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(lookup)

    def _looked_up(self, lookup: "asyncio.Future[list[Address]]") -> None:
        self._lookups.release()
        if not lookup.cancelled():
            lookup.exception()  # whoever asked has heard it, or is gone

    async def _relay(self, sock: socket.socket, far: socket.socket, request: Request, rest: bytes) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._idle_s):
            await loop.sock_sendall(sock, request.granted())
            await loop.sock_sendall(far, request.first + rest)
        with contextlib.suppress(OSError):
            await pump(sock, far, idle_s=self._idle_s)


def _why(error: OSError) -> str:
    """In the system's words: asyncio's own name the address again."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or "the name has no address"
    return os.strerror(error.errno)


async def _last_words(sock: socket.socket, answer: bytes) -> None:
    """Answer and end. What the client still sends is read for a moment: closing on it would destroy the answer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LINGER_S):
        await loop.sock_sendall(sock, answer)
        sock.shutdown(socket.SHUT_WR)
        unread = _LINGER_BYTES
        while unread > 0 and (piece := await loop.sock_recv(sock, PIECE_BYTES)):
            unread -= len(piece)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel these and wait until they are over."""
    going = list(tasks)
    for task in going:
        task.cancel()
    if going:
        await asyncio.wait(going)
