"""TLS before the door: a connection is counted, and has its time, from its first byte and not from its handshake's last.

asyncio's own server tells nobody of a connection until its handshake is over, for which it gives a minute: whoever opens
thousands and says nothing would have every descriptor there is.
"""

import asyncio
import ssl

from excise.server.door import HEAD_S, Door, Visitor


class _Early(asyncio.Protocol):
    """What comes between the handshake's end and the visitor's beginning is kept for it: at most what was read at once."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._early: list[bytes] | None = []

    def data_received(self, data: bytes) -> None:
        if self._early is None:
            self._visitor.data_received(data)
        else:
            self._early.append(data)

    def begin(self, transport: asyncio.Transport) -> None:
        early, self._early = self._early or [], None
        self._visitor.connection_made(transport)
        for data in early:
            self._visitor.data_received(data)

    def eof_received(self) -> bool | None:
        return self._visitor.eof_received()

    def pause_writing(self) -> None:
        self._visitor.pause_writing()

    def resume_writing(self) -> None:
        self._visitor.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitor.connection_lost(exc)


class Shaking(asyncio.Protocol):
    """A connection until its handshake is over."""

    def __init__(self, door: Door, context: ssl.SSLContext) -> None:
        self._door = door
        self._context = context
        self._visitor = door.visitor()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._visitor.count(transport):
            transport.abort()  # before TLS there is no word that it would understand
            return
        transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._shake(transport))

    async def _shake(self, transport: asyncio.Transport) -> None:
        early = _Early(self._visitor)
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HEAD_S,
                ssl_shutdown_timeout=HEAD_S,
            )
        except (OSError, EOFError):  # no TLS, none that we speak, or too slow
            secure = None
        if secure is None or self._visitor.is_over:
            self._door.gate.refused("tls")
            transport.abort()
            self._visitor.connection_lost(None)
            return
        early.begin(secure)

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitor.connection_lost(exc)
