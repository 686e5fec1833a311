"""The form of the calls to Firecracker's API, heard by a server of ours: the monitor itself runs on no machine of the tests."""

import asyncio
import json
from pathlib import Path

import pytest

from excise.errors import SubstrateError
from excise.vmm.firecracker import call


async def answered(path: Path, answer: bytes) -> tuple[str, dict[str, object]]:
    """What one call said, to a server that answers so."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
        heard.extend((head.splitlines()[0], await reader.readexactly(length)))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        await call(path, "PUT", "/machine-config", {"vcpu_count": 1})
    return heard[0].decode(), json.loads(heard[1])


def test_a_call_is_a_request_with_a_body(tmp_path: Path) -> None:
    seen = asyncio.run(answered(tmp_path / "api", b"HTTP/1.1 204 \r\nServer: Firecracker API\r\n\r\n"))
    assert seen == ("PUT /machine-config HTTP/1.1", {"vcpu_count": 1})


def test_a_refusal_is_told_in_its_words(tmp_path: Path) -> None:
    said = b'{"fault_message":"no such thing"}'
    answer = b"HTTP/1.1 400 \r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    with pytest.raises(SubstrateError, match=r"refused PUT /machine-config: .*no such thing"):
        asyncio.run(answered(tmp_path / "api", answer))
