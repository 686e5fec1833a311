"""Metrics in Prometheus' text format (0.0.4), and a small server for whoever scrapes them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from excise.errors import SpecError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
_HEAD_BYTES = 1 << 14
_ASKING_S = 5.0

Labels = Mapping[str, str]


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How many values were at most each bound, and all of them together."""

    within: Sequence[tuple[float, int]]
    """Bounds that rise, and how many values were not above each."""
    count: int
    total: float


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric: one value, or histogram, for each set of labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float | Histogram]]


def text(families: Sequence[Family]) -> str:
    """All of them; what has no sample is left out."""
    return "".join(line + "\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> list[str]:
    name = family.name
    lines = [f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {family.kind}"]
    for labels, value in family.samples:
        if not isinstance(value, Histogram):
            lines.append(f"{name}{_labelled(labels)} {_number(value)}")
            continue
        bounds = [*((_number(bound), count) for bound, count in value.within), ("+Inf", value.count)]
        lines += [f"{name}_bucket{_labelled({**labels, 'le': bound})} {count}" for bound, count in bounds]
        lines += [f"{name}_sum{_labelled(labels)} {_number(value.total)}", f"{name}_count{_labelled(labels)} {value.count}"]
    return lines


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels.items())
    return "{" + inside + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    """Whole numbers without a point; the format spells the others as Go does, for which Python's inf and nan will do."""
    return f"{value:.0f}" if abs(value) < 1e15 and float(value).is_integer() else repr(value)


@asynccontextmanager
async def serving(render: Callable[[], str], port: int, host: str = LOOPBACK) -> AsyncGenerator[str]:
    """Answer GET /metrics with `render()` while the block runs; gives the address, whose port was free if `port` is 0."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_ASKING_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_answer(head, render))
                    await writer.drain()
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=_HEAD_BYTES)
    except OSError as error:
        raise SpecError(
            f"metrics cannot be served at {host}:{port}: {error.strerror}; name another port with --metrics"
        ) from None
    async with server:
        bound = server.sockets[0].getsockname()
        yield f"http://{f'[{host}]' if ':' in host else host}:{bound[1]}/metrics"


def _answer(head: bytes, render: Callable[[], str]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "ask with GET\n", "text/plain")
    if path != b"/metrics":
        return _response("404 Not Found", "the metrics are at /metrics\n", "text/plain")
    found = _response("200 OK", render(), CONTENT_TYPE)
    return found.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else found


def _response(status: str, body: str, kind: str) -> bytes:
    data = body.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
    )
