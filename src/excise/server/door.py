"""Who comes in: a request's head is read here, within bounds, before anything else is made for it.

Then it is a channel, whose frames are ours; or HTTP's, which is aiohttp's. A client that says nothing, or too slowly, costs a
timer and 16 KiB.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

LONGEST_HEAD = 16384
HEAD_S = 10.0
TAKE_S = 60.0
"""For a client to take some of an answer of HTTP's, when it took nothing before."""
MOST_CONNECTIONS = 1024
MOST_OF_ONE = 256
"""From one address."""
_TLS = 0x16
"""A handshake's first byte, and no request's."""
_TEXTS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    410: "Gone",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Head(NamedTuple):
    """A request's first lines; names of headers in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def key(self) -> str | None:
        """What it says it may come in with."""
        kind, _, given = self.headers.get("authorization", "").partition(" ")
        return given.strip() if kind.lower() == "bearer" and given.strip() else None

    @property
    def is_upgrade(self) -> bool:
        asked = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        return "upgrade" in asked and self.headers.get("upgrade", "").strip().lower() == "excise/1"


class Denied(Exception):  # noqa: N818 - what it says
    """A request that goes no further."""

    def __init__(self, status: int, text: str, retry_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_s = retry_s


def refusal_body(text: str, kind: str = "refused") -> bytes:
    return msgspec.json.encode({"error": {"kind": kind, "text": text}}) + b"\n"


def parse(data: bytes) -> Head:
    """The head, without its last empty line; Denied if it is none."""
    try:
        first, *lines = data.decode("ascii").split("\r\n")
        method, path, version = first.split(" ")
    except ValueError:
        raise Denied(400, "that is no request of HTTP/1.1") from None
    if version not in ("HTTP/1.1", "HTTP/1.0") or not path.startswith("/"):
        raise Denied(400, "that is no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Denied(400, "a header that is none")
        if name.lower() in headers and name.lower() in ("host", "authorization", "content-length", "excise-channel", "origin"):
            raise Denied(400, f"the header {name} twice")
        headers[name.lower()] = value.strip()
    return Head(method, path, headers)


class Gate(NamedTuple):
    """What the door asks of the server."""

    admit: Callable[[Head], None]
    """Raises Denied: for who calls it by a name that is not its own, or comes from another page."""
    channel: Callable[[Head, asyncio.Transport], asyncio.Protocol]
    """Answers the request and takes the connection over; raises Denied."""
    http: Callable[[], asyncio.Protocol]
    refused: Callable[[str], None]


class Door:
    """All connections of one server, counted."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.open: set[Visitor] = set()
        self._of: Counter[str] = Counter()

    def visitor(self) -> "Visitor":
        return Visitor(self)

    def came(self, visitor: "Visitor", address: str) -> bool:
        if len(self.open) >= MOST_CONNECTIONS or self._of[address] >= MOST_OF_ONE:
            self.gate.refused("connections")
            return False
        self.open.add(visitor)
        self._of[address] += 1
        return True

    def left(self, visitor: "Visitor", address: str) -> None:
        if visitor in self.open:
            self.open.discard(visitor)
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]

    def close(self) -> None:
        for visitor in tuple(self.open):
            visitor.abort()


class Visitor(asyncio.Protocol):
    """One connection, until it is known what it is; then what takes it over is told everything."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""
        self._is_over = False
        self._is_counted = False
        self._is_http = False
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self.count(transport):
            self._deny(Denied(503, "there are as many connections as this server has room for", retry_s=1.0))
            return
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._late)

    def count(self, transport: asyncio.Transport) -> bool:
        """Among those that are open, once; False if there is no room. `transport` is what is aborted until it has its own."""
        if not self._is_counted:
            self._transport = transport
            peer: tuple[str, ...] | str | None = transport.get_extra_info("peername")
            self._address = peer[0] if peer and not isinstance(peer, str) else "unix"
            self._is_counted = self._door.came(self, self._address)
        return self._is_counted

    @property
    def is_over(self) -> bool:
        return self._is_over

    def _late(self) -> None:
        self._door.gate.refused("slow")
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._next is not None:
            self._next.data_received(data)
            return
        if self._is_over:
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if self._head[0] == _TLS:
                self._deny(Denied(400, "this server has no certificate: call it http://"))
            elif len(self._head) > LONGEST_HEAD:
                self._deny(Denied(431, f"a request's head has at most {LONGEST_HEAD} bytes"))
            return
        try:
            self._hand_over(end)
        except Denied as denied:
            self._deny(denied)

    def _hand_over(self, end: int) -> None:
        if end > LONGEST_HEAD:
            raise Denied(431, f"a request's head has at most {LONGEST_HEAD} bytes")
        whole = bytes(self._head)
        head = parse(whole[:end])
        gate = self._door.gate
        gate.admit(head)
        assert self._transport is not None
        if head.is_upgrade:
            rest = whole[end + 4 :]
            self._next = gate.channel(head, self._transport)
        else:
            rest = whole
            self._is_http = True
            self._next = gate.http()
            self._next.connection_made(self._transport)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._head.clear()
        if rest:
            self._next.data_received(rest)

    def _deny(self, denied: Denied) -> None:
        self._is_over = True
        self._door.gate.refused(str(denied.status))
        assert self._transport is not None
        body = refusal_body(denied.text)
        lines = [
            f"HTTP/1.1 {denied.status} {_TEXTS.get(denied.status, 'Refused')}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if denied.retry_s is not None:
            lines.append(f"Retry-After: {denied.retry_s:g}")
        self._transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self._transport.close()

    def eof_received(self) -> bool | None:
        return self._next.eof_received() if self._next is not None else None

    def pause_writing(self) -> None:
        """What a channel's client does not take is bounded; an answer of HTTP's lies here until it is taken, or given up."""
        if self._next is not None:
            if self._is_http:
                self._stalled(asyncio.get_running_loop().call_later(TAKE_S, self._late))
            self._next.pause_writing()

    def resume_writing(self) -> None:
        self._stalled(None)
        if self._next is not None:
            self._next.resume_writing()

    def _stalled(self, timer: asyncio.TimerHandle | None) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._stall = timer

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._door.left(self, self._address)
        self._is_over = True
        self._stalled(None)
        if self._next is not None:
            with contextlib.suppress(Exception):
                self._next.connection_lost(exc)
