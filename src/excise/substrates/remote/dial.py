"""A connection to a server: an HTTP request that becomes a channel's carrier."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from excise.channel.channel import Channel
from excise.errors import SubstrateError
from excise.substrates.remote.where import Where, context

_LONGEST_HEAD = 16384
_LONGEST_BODY = 65536
_SWITCHED = 101
_END_S = 2.0


class Reply(NamedTuple):
    """How a server answered the request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """In the server's own words."""
        with contextlib.suppress(msgspec.DecodeError, AttributeError, TypeError):
            said = msgspec.json.decode(self.body)
            return str(said["error"]["text"])[:2000]
        return f"it answered {self.status}"

    @property
    def retry_s(self) -> float | None:
        with contextlib.suppress(ValueError, KeyError):
            return max(0.0, float(self.headers["retry-after"]))
        return None


class Dialled(asyncio.Protocol):
    """Reads the reply's head, then hands everything to a channel."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._channel: Channel | None = None
        self._early: list[bytes] = []
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._channel is not None:
            self._channel.take(data, self.transport)
        elif self.reply.done():
            self._early.append(data)
        else:
            self._head += data
            self._read()

    def _read(self) -> None:
        head, ended, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not ended:
            if len(self._head) > _LONGEST_HEAD:
                self._answer(Reply(0, {}, b""))
            return
        try:
            status, headers = _parsed(head)
        except (ValueError, IndexError):
            self._answer(Reply(0, {}, b""))
            return
        if status == _SWITCHED:
            self._early.append(rest)
            self._answer(Reply(status, headers, b""))
            return
        length = min(int(headers.get("content-length", "0") or 0), _LONGEST_BODY)
        if len(rest) >= length:
            self._answer(Reply(status, headers, rest[:length]))

    def _answer(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def carry(self, channel: Channel, theirs: int) -> None:
        """From now on it is the channel's."""
        assert self.transport is not None
        self._channel = channel
        channel.connect(self.transport, theirs)
        early, self._early = self._early, []
        for data in early:
            if data:
                channel.take(data, self.transport)

    async def gone(self) -> None:
        """Wait for its end, which is under way: TLS has last words."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._gone.wait()
        if self.transport is not None and not self._gone.is_set():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        why = str(exc) if exc is not None else "the server closed it"
        if not self.reply.done():
            self.reply.set_exception(ConnectionResetError(why))
            self.reply.exception()  # somebody may have given up waiting for it
        if self._channel is not None:
            self._channel.broke(self.transport, why)

    def pause_writing(self) -> None:
        """What waits is bounded by the channel."""


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status = first.split(" ", 2)[:2]
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    pairs = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def dial(there: Where, key: str | None, channel_id: str, had: int | None) -> tuple[Dialled, Reply]:
    """Ask for a new channel of this id, or for the one there is, of whose frames `had` have come. OSError if nobody answers."""
    loop = asyncio.get_running_loop()
    if there.path is not None:
        transport, dialled = await loop.create_unix_connection(Dialled, there.path)
    else:
        transport, dialled = await loop.create_connection(Dialled, there.host, there.port, ssl=context(there))
    try:
        lines = [
            "GET /v1/channel HTTP/1.1",
            f"Host: {there.authority}",
            "Connection: Upgrade",
            "Upgrade: excise/1",
            f"Excise-Channel: {channel_id}",
        ]
        if had is not None:
            lines.append(f"Excise-Had: {had}")
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        transport.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        reply = await dialled.reply
    except BaseException:
        transport.abort()
        raise
    if reply.status != _SWITCHED:
        transport.abort()
        await dialled.gone()
    elif not _is_count(reply.headers.get("excise-had", "")):
        transport.abort()
        raise SubstrateError(f"{there.url} is no server of Excise's, or one of another version")
    return dialled, reply
