"""The other end of a link, played by the test: it hears what the host sends, and says what the test wants said."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from excise.guest import wire
from excise.guest.carrier import SocketCarrier, pair
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.spec import Spec
from excise.substrate import Capabilities

ABLE = Capabilities(stream=True, sessions=True, pty=True, users=True, ports=True, background=True, guest_clock=True)
_HEADER = struct.Struct("<IIIBBH")
_ENDED = struct.Struct("<BBHiiiQQQ")


class Heard:
    """A frame of the host's."""

    def __init__(self, head: tuple[int, ...], payload: bytes) -> None:
        _, self.id, self.epoch, self.type, self.flags, _ = head
        self.payload = payload

    def fields(self) -> list[tuple[int, bytes]]:
        return list(wire.fields(self.payload))

    def values(self, tag: int) -> list[bytes]:
        return [value for found, value in self.fields() if found == tag]


class Peer:
    """Blocking waits are the loop's: nothing here polls."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.epoch = 1
        self._buffer = bytearray()

    async def hear(self) -> Heard:
        """The host's next frame."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._buffer) >= 16:
                head = _HEADER.unpack_from(self._buffer)
                if len(self._buffer) >= 16 + head[0]:
                    payload = bytes(self._buffer[16 : 16 + head[0]])
                    del self._buffer[: 16 + head[0]]
                    return Heard(head, payload)
            data = await loop.sock_recv(self.sock, 1 << 18)
            if not data:
                raise EOFError
            self._buffer += data

    async def hear_a(self, type: int) -> Heard:
        """The next frame, which is of this type."""
        heard = await self.hear()
        assert heard.type == type, f"heard a frame of type {heard.type}, not {type}"
        return heard

    async def gone(self) -> None:
        """Returns when the host has hung up."""
        try:
            while True:
                await self.hear()
        except (EOFError, ConnectionError):
            return

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def greet(self, version: int = 1, epoch: int | None = None) -> Heard:
        heard = await self.hear_a(wire.HELLO)
        self.epoch = heard.epoch if epoch is None else epoch
        await self.say(self.frame(wire.HELLO, 0, wire.number(wire.TAG_VERSION, version)))
        return heard

    def frame(self, type: int, id: int, payload: bytes = b"", flags: int = 0) -> bytes:
        return _HEADER.pack(len(payload), id, self.epoch, type, flags, 0) + payload

    def output(self, id: int, data: bytes, stream: int = 1) -> bytes:
        return self.frame(wire.OUTPUT, id, data, stream)

    def ended(self, id: int, end: int = 0, *, code: int = 0, signal: int = 0, error: int = 0, flags: int = 4) -> bytes:
        return self.frame(wire.ENDED, id, _ENDED.pack(end, flags, 0, code, signal, error, 1000, 2000, 3000))

    def close(self) -> None:
        self.sock.close()


def met(
    *,
    spec: Spec | None = None,
    capabilities: Capabilities = ABLE,
    image_env: Mapping[str, str] | None = None,
    on_close: Callable[[], None] | None = None,
    **terms: Any,
) -> tuple[GuestHandle, Peer]:
    """A handle and the guest at its other end, which has not spoken yet."""
    ours, theirs = pair()

    async def dispose() -> None:
        if on_close is not None:
            on_close()

    handle = GuestHandle(
        Link(SocketCarrier(ours)),
        id="one",
        address="played",
        capabilities=capabilities,
        spec=spec or Spec(),
        image_env=image_env or {},
        dispose=dispose,
        **{"cwd": "/", "user": None, **terms},
    )
    return handle, Peer(theirs)
