"""A connection of one's own to the API server, by the kubeconfig's way: with its certificates, through its proxy."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from excise.errors import SpecError
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.carrier import FORWARD, Refused, StreamCarrier
from excise.substrates.kubernetes.refusals import Unreachable, refusal

# The older one first: an API server hands its bytes on as they are. The newer one it takes apart and puts together again,
# for an end of stdin that a link does not need.
PROTOCOLS = "v4.channel.k8s.io, v5.channel.k8s.io"
_CONNECT_S = 10.0
_LONGEST_ANSWER_BYTES = 65536


async def exec_carrier(api: Api, pod: str, container: str, argv: Sequence[str]) -> StreamCarrier:
    """The stdin and stdout of a program in a pod."""
    words = [("container", container), ("stdin", "1"), ("stdout", "1"), ("stderr", "1"), ("tty", "0")]
    return await _handed_over(api, pod, "exec", [*words, *(("command", word) for word in argv)], StreamCarrier())


async def port_carrier(api: Api, pod: str, port: int) -> StreamCarrier:
    """A connection to a port of a pod's own loopback."""
    return await _handed_over(api, pod, "portforward", [("ports", str(port))], StreamCarrier(FORWARD))


async def _handed_over(
    api: Api, pod: str, subresource: str, query: Sequence[tuple[str, str]], carrier: StreamCarrier
) -> StreamCarrier:
    await api.open()
    server = urlsplit(api.access.server)
    shown = await api.shown()
    try:
        async with asyncio.timeout(_CONNECT_S):
            await _connected(api, carrier)
        path = f"{server.path}{api.path('pods', pod)}/{subresource}?{urlencode(query, quote_via=quote)}"
        await carrier.upgrade(path, server.netloc, shown.headers, PROTOCOLS)
    except BaseException as error:
        carrier.close()
        if isinstance(error, Refused):
            raise refusal(error.status, _status(error.body), what=f"get pods/{subresource}", where=api.where) from None
        if isinstance(error, OSError | TimeoutError):
            raise Unreachable(
                f"the API server at {api.where} does not answer ({error or 'in time'}): see that it runs"
            ) from None
        raise
    return carrier


async def _connected(api: Api, carrier: StreamCarrier) -> None:
    loop = asyncio.get_running_loop()
    shown = await api.shown()
    server, proxy = urlsplit(api.access.server), urlsplit(api.access.proxy or "")
    host, port = server.hostname or "", server.port or (443 if shown.tls else 80)
    name = (api.access.server_name or host) if shown.tls else None
    if not proxy.hostname:
        await loop.create_connection(lambda: carrier, host, port, ssl=shown.tls, server_hostname=name)
        return
    if proxy.scheme != "http":
        raise SpecError(f"the guest's link does not go through {api.access.proxy}: name an http proxy, or use `kubernetes`")
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80)
    try:
        await _through(reader, writer, f"{host}:{port}", api.access.proxy or "")
        transport = writer.transport
        if shown.tls is not None:
            transport = await loop.start_tls(transport, carrier, shown.tls, server_hostname=name)
        else:
            transport.set_protocol(carrier)
        carrier.connection_made(transport or writer.transport)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Unreachable(f"the proxy {api.access.proxy} hung up") from None
    except BaseException:
        writer.transport.abort()
        raise


async def _through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str, proxy: str) -> None:
    """Have a proxy connect us."""
    writer.write(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.\d 200", answer):
        said = answer.partition(b"\r\n")[0].decode("utf-8", "replace")
        raise Unreachable(f"the proxy {proxy} does not lead to {to}: {said}")


def _status(body: bytes) -> dict[str, object]:
    """What an API server says of a refusal; any other text is the message itself."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(body, type=dict[str, object])
    return {"message": body[:_LONGEST_ANSWER_BYTES].decode("utf-8", "replace")}
