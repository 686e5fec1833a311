"""A container's stdin and stdout as a byte stream: the daemon's own framing taken off, in whatever pieces it comes."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from excise.errors import SandboxLost, SubstrateError
from excise.substrates.docker.attached import AttachedCarrier
from excise.substrates.docker.endpoint import Endpoint

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"


def piece(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


@asynccontextmanager
async def daemon(place: Path, answer: bytes, *, step: int = 1 << 20) -> AsyncGenerator[tuple[Endpoint, list[bytes]]]:
    """One that answers the first request with these bytes, `step` at a time, and then hangs up; and what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_unix_server(serve, place / "docker.sock")
    try:
        yield Endpoint(url=f"unix://{place}/docker.sock", named_by="the test"), heard
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_stdout_goes_on_and_the_end_of_stderr_is_the_reason(tmp_path: Path, step: int) -> None:
    answer = UPGRADED + piece(1, b"hel") + piece(2, b"bad ") + piece(1, b"") + piece(1, b"lo") + piece(2, b"news\n")

    async def scenario() -> None:
        async with daemon(tmp_path, answer, step=step) as (endpoint, heard):
            received, over = bytearray(), asyncio.get_running_loop().create_future()
            carrier = await AttachedCarrier.open(endpoint, "/containers/x/attach")
            carrier.begin(received=received.extend, drained=lambda: None, ended=over.set_result)
            assert await asyncio.wait_for(over, 20) == "its container ended, saying: bad news"
            assert bytes(received) == b"hello"
            assert heard[0].startswith(b"POST /containers/x/attach HTTP/1.1\r\n")
            carrier.send(b"to nobody")
            carrier.close()
            carrier.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", SubstrateError, "does not hand over .*: HTTP/1.1 404 Not Found"),
        (b"HTTP/1.1 10", SandboxLost, "closed the connection"),
        (b"", SandboxLost, "closed the connection"),
    ],
)
def test_a_daemon_that_does_not_hand_it_over(tmp_path: Path, answer: bytes, error: type[Exception], sentence: str) -> None:
    async def scenario() -> None:
        async with daemon(tmp_path, answer) as (endpoint, _):
            with pytest.raises(error, match=sentence):
                await asyncio.wait_for(AttachedCarrier.open(endpoint, "/"), 20)

    asyncio.run(scenario())


def test_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    endpoint = Endpoint(url=f"unix://{tmp_path}/none.sock", named_by="the test")
    with pytest.raises(SandboxLost, match="does not answer any more"):
        asyncio.run(AttachedCarrier.open(endpoint, "/"))
