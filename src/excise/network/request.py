"""What a connection asks for, read off its first bytes: HTTP CONNECT, an absolute-form HTTP request, or SOCKS5."""

import asyncio
import ipaddress
import re
import socket
from typing import Literal, NamedTuple

from excise.network.policy import as_host

HEAD_BYTES = 32768
"""The longest request head that is read."""
PIECE_BYTES = 65536
_HOP_BY_HOP = frozenset({b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"upgrade"})
"""Header fields of this connection, not of the next. Transfer-Encoding stays: the body goes on as it came."""
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]*)([^\s#]*)(?:#.*)?")

_SOCKS_VERSION = 5
_SOCKS_NO_LOGIN = 0
_SOCKS_NONE_FITS = 0xFF
_SOCKS_CONNECT = 1
_SOCKS_IPV4, _SOCKS_NAME, _SOCKS_IPV6 = 1, 3, 4
SOCKS_FAILED, SOCKS_REFUSED, SOCKS_UNREACHABLE, SOCKS_NO_VERB = 1, 2, 4, 7


class BadRequest(Exception):  # noqa: N818 - what it is
    """It cannot be understood or is not what a proxy does; the answer to give, if any. Shows nothing of the request."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class Request(NamedTuple):
    """Whom to connect to, and what to send there first."""

    host: str
    port: int
    kind: Literal["tunnel", "forward", "socks"]
    first: bytes

    def granted(self) -> bytes:
        """What tells the client that it is connected; a forwarded request's answer is the server's own."""
        if self.kind == "socks":
            return _socks_answer(0)
        return b"HTTP/1.1 200 Connection established\r\n\r\n" if self.kind == "tunnel" else b""

    def denied(self, status: int, reason: str) -> bytes:
        if self.kind == "socks":
            return _socks_answer({403: SOCKS_REFUSED, 502: SOCKS_UNREACHABLE, 504: SOCKS_UNREACHABLE}.get(status, SOCKS_FAILED))
        return http_answer(status, reason)


def http_answer(status: int, reason: str) -> bytes:
    """A refusal. Its reason is in the status line, too: pip, git and curl show that and not the body."""
    body = f"{reason}\n".encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class Incoming:
    """The client's bytes, up to where the request ends; `rest` is what came after it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""

    async def _more(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self.sock, PIECE_BYTES)
        if not piece:
            raise BadRequest(b"")
        self.rest += piece

    async def exactly(self, count: int) -> bytes:
        while len(self.rest) < count:
            await self._more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    async def first(self) -> int:
        """The first byte, which stays."""
        if not self.rest:
            await self._more()
        return self.rest[0]

    async def head(self) -> bytes:
        """All up to the empty line that ends a request's head."""
        while (end := self.rest.find(b"\r\n\r\n", 0, HEAD_BYTES)) < 0:
            if len(self.rest) >= HEAD_BYTES:
                raise BadRequest(http_answer(431, f"The request's head is longer than {HEAD_BYTES} bytes"))
            await self._more()
        taken, self.rest = self.rest[:end], self.rest[end + 4 :]
        return taken


async def read_request(incoming: Incoming) -> Request:
    """The one request of a connection."""
    if await incoming.first() == _SOCKS_VERSION:
        return await _socks(incoming)
    return parse_http(await incoming.head())


def parse_http(head: bytes) -> Request:
    """A request line and header fields, without the empty line."""
    line, *fields = head.split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not re.fullmatch(rb"HTTP/1\.[01]", words[2]):
        raise BadRequest(http_answer(400, "This is no HTTP/1 request"))
    method, target, version = words
    if method == b"CONNECT":
        host, port = _host_and_port(target, None)
        return Request(host, port, "tunnel", b"")
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise BadRequest(http_answer(400, "This is a proxy: ask for http://host/path, or CONNECT host:port"))
    host, port = _host_and_port(found[1], 80)
    path = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    lines = [b" ".join((method, path, version)), b"Host: " + found[1], *_kept_fields(fields), b"Connection: close"]
    return Request(host, port, "forward", b"\r\n".join(lines) + b"\r\n\r\n")


def _kept_fields(fields: list[bytes]) -> list[bytes]:
    """The header fields for the server: without those of this connection, one by one or named by Connection."""
    named: list[tuple[bytes, bytes]] = []
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or set(value) & set(b"\r\n\0"):
            raise BadRequest(http_answer(400, "A header field of this request is malformed"))
        named.append((name.lower(), value))
    gone = set(_HOP_BY_HOP)
    for name, value in named:
        if name == b"connection":
            gone.update(token.strip().lower() for token in value.split(b","))
    return [field for field, (name, _) in zip(fields, named, strict=True) if name not in gone]


def _host_and_port(authority: bytes, default_port: int | None) -> tuple[str, int]:
    found = re.fullmatch(rb"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@\s]+)(?::([0-9]{0,5}))?", authority)
    host = as_host(found[1].decode("latin-1")) if found else None
    if found is None or host is None:
        raise BadRequest(http_answer(400, "The request names no valid host; give a name or an address, and no user"))
    port = int(found[2]) if found[2] else default_port
    if port is None or not 0 < port < 65536:
        raise BadRequest(http_answer(400, "The request names no valid port"))
    return host, port


def _socks_answer(code: int) -> bytes:
    return bytes((_SOCKS_VERSION, code, 0, _SOCKS_IPV4, 0, 0, 0, 0, 0, 0))


async def _socks(incoming: Incoming) -> Request:
    """RFC 1928: CONNECT, without a login."""
    _, count = await incoming.exactly(2)
    if _SOCKS_NO_LOGIN not in await incoming.exactly(count):
        raise BadRequest(bytes((_SOCKS_VERSION, _SOCKS_NONE_FITS)))
    await asyncio.get_running_loop().sock_sendall(incoming.sock, bytes((_SOCKS_VERSION, _SOCKS_NO_LOGIN)))
    version, verb, _, kind = await incoming.exactly(4)
    host = await _socks_host(incoming, kind)
    port = int.from_bytes(await incoming.exactly(2))
    if version != _SOCKS_VERSION or verb != _SOCKS_CONNECT:
        raise BadRequest(_socks_answer(SOCKS_NO_VERB))
    if host is None or port == 0:
        raise BadRequest(_socks_answer(SOCKS_FAILED))
    return Request(host, port, "socks", b"")


async def _socks_host(incoming: Incoming, kind: int) -> str | None:
    if kind == _SOCKS_IPV4:
        return as_host(str(ipaddress.IPv4Address(await incoming.exactly(4))))
    if kind == _SOCKS_IPV6:
        return as_host(str(ipaddress.IPv6Address(await incoming.exactly(16))))
    if kind == _SOCKS_NAME:
        (length,) = await incoming.exactly(1)
        return as_host((await incoming.exactly(length)).decode("latin-1"))
    raise BadRequest(_socks_answer(8))
