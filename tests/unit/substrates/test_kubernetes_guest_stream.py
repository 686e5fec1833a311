"""The link's WebSocket, against a server that is not ours: frames in whatever pieces, refusals, silence, its end."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from excise.errors import SandboxLost
from excise.substrates.kubernetes import carrier as carrier_module
from excise.substrates.kubernetes import websocket
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.carrier import Judged, StreamCarrier, surroundings
from excise.substrates.kubernetes.dial import exec_carrier
from excise.substrates.kubernetes.refusals import Forbidden, Gone, Unreachable
from excise.substrates.kubernetes.websocket import Frames

DEADLINE_S = 20.0
TOLD = b"/work\x007\0PATH=/bin\0ODD=a=b\0"
TELLS = b"EXCISE1\n" + len(TOLD).to_bytes(4, "little") + TOLD
Serve = Callable[[web.WebSocketResponse], Awaitable[None]]


def unmasked(frame: bytes) -> bytes:
    """What a server makes of a client's frame."""
    length, at = frame[1] & 127, 2
    if length > 125:
        size = 2 if length == 126 else 8
        length, at = int.from_bytes(frame[2 : 2 + size], "big"), 2 + size
    key, body = frame[at : at + 4], frame[at + 4 :]
    assert len(body) == length
    return bytes(byte ^ key[index % 4] for index, byte in enumerate(body))


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 70001])
def test_a_frame_is_masked_and_comes_back(length: int) -> None:
    payload = bytes(range(256)) * (length // 256 + 1)
    assert unmasked(websocket.frame(websocket.BINARY, payload[:length])) == payload[:length]


def served(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """A server's frame."""
    length = len(payload)
    first = bytes(((0x80 if last else 0) | opcode,))
    if length < 126:
        return first + bytes((length,)) + payload
    if length < 65536:
        return first + b"\x7e" + length.to_bytes(2, "big") + payload
    return first + b"\x7f" + length.to_bytes(8, "big") + payload


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 20])
def test_frames_are_taken_apart_in_whatever_pieces_they_come(step: int) -> None:
    data = b"".join(
        [
            served(2, b"\x01" + b"a" * 300),
            served(9, b"there?"),
            served(2, b"\x01"),
            served(2, b"\x01hel", last=False),
            served(10, b""),
            served(0, b"lo"),
            served(2, b""),
            served(2, b"\x02err"),
            served(1, b"\x01" + b"b" * 70000),
            served(8, b"\x03\xe8"),
        ]
    )
    channels: dict[int, bytes] = {}
    controls: list[tuple[int, bytes]] = []

    def told(channel: int, piece: memoryview) -> None:
        channels[channel] = channels.get(channel, b"") + piece

    frames = Frames(told, lambda opcode, payload: controls.append((opcode, payload)))
    for at in range(0, len(data), step):
        frames.take(memoryview(data)[at : at + step])
    assert channels == {1: b"a" * 300 + b"hello" + b"b" * 70000, 2: b"err"}
    assert controls == [(9, b"there?"), (10, b""), (8, b"\x03\xe8")]


@pytest.mark.parametrize("data", [b"\x82\x81abcde", b"\x83\x00", b"\x89\x7e\x01\x00"], ids=["masked", "kind", "long ping"])
def test_what_no_server_sends_is_an_error(data: bytes) -> None:
    with pytest.raises(websocket.FrameError):
        Frames(lambda *_: None, lambda *_: None).take(memoryview(data))


def test_surroundings_keep_what_variables_hold() -> None:
    found = surroundings(b"/a b\x0065535\0X=1=2\0EMPTY=\0\xff=\xfe\0noise\0")
    assert found.cwd == "/a b"
    assert found.env == {"X": "1=2", "EMPTY": "", "\udcff": "\udcfe"}


@asynccontextmanager
async def api(tmp_path: Path, serve: Serve | None, refuse: tuple[int, str] | None = None) -> AsyncGenerator[Api]:
    """An API server on loopback whose exec speaks as `serve` does, or is refused."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        if refuse is not None:
            return web.Response(status=refuse[0], text=refuse[1])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), autoping=False)
        await socket.prepare(request)
        assert serve is not None
        await serve(socket)
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/here/pods/box/exec", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "here"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
                "users": [{"name": "u", "user": {"token": "let-me"}}],
            }
        )
    )
    client = Api(str(config))
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()
    for request in seen:
        assert request.headers["Authorization"] == "Bearer let-me"
        assert request.query.getall("command") == ["a b", "-g"]
        assert len(base64.b64decode(request.headers["Sec-WebSocket-Key"])) == 16


async def dialled(client: Api) -> StreamCarrier:
    return await asyncio.wait_for(exec_carrier(client, "box", "main", ("a b", "-g")), DEADLINE_S)


def test_a_stream_goes_both_ways_and_its_end_is_judged(tmp_path: Path) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + TELLS[:5])
        await socket.send_bytes(b"\x01" + TELLS[5:] + b"early")
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            if message.data == b"\0bye":
                break
            await socket.send_bytes(b"\x01" + message.data[1:])
        await socket.send_bytes(b"\x02words of stderr\n")
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Failure", "message": "it was killed"}).encode())

    async def why(said: str) -> str:
        return f"judged: {said}"

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            stream = await dialled(client)
            found = await asyncio.wait_for(stream.told(), DEADLINE_S)
            assert (found.cwd, found.uid, found.env) == ("/work", 7, {"PATH": "/bin", "ODD": "a=b"})
            carrier = Judged(stream, why)
            received, over = bytearray(), asyncio.get_running_loop().create_future()
            carrier.begin(received=received.extend, drained=lambda: None, ended=over.set_result)
            carrier.send(b"x" * 300000)
            carrier.send(b"bye")
            assert await asyncio.wait_for(over, DEADLINE_S) == ("judged: the pod's stream ended: it was killed words of stderr")
            assert bytes(received) == b"early" + b"x" * 300000
            assert carrier.waiting_bytes == 0
            carrier.send(b"to nobody")
            carrier.close()
            carrier.close()

    asyncio.run(scenario())


def test_a_stream_that_is_closed_tells_nobody(tmp_path: Path) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + TELLS)
        async for _ in socket:
            pass

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            carrier = await dialled(client)
            ended: list[str] = []
            carrier.begin(received=lambda _: None, drained=lambda: None, ended=ended.append)
            carrier.close()
        assert ended == []

    asyncio.run(scenario())


def test_a_program_that_is_not_the_guest_is_not_believed(tmp_path: Path) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01hello, I am a shell")

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            carrier = await dialled(client)
            with pytest.raises(SandboxLost, match="not the guest: it says 'hello, I am"):
                await asyncio.wait_for(carrier.told(), DEADLINE_S)
            carrier.close()

    asyncio.run(scenario())


def test_a_program_that_did_not_start_says_why(tmp_path: Path) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Failure", "message": "no such file"}).encode())

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            carrier = await dialled(client)
            with pytest.raises(SandboxLost, match="no such file"):
                await asyncio.wait_for(carrier.told(), DEADLINE_S)
            carrier.close()

    asyncio.run(scenario())


_HERE = 'in API group "" in the namespace "here"'


@pytest.mark.parametrize(
    ("status", "message", "error", "says"),
    [
        (
            403,
            f'pods "box" is forbidden: User "u" cannot get resource "pods/exec" {_HERE}',
            Forbidden,
            "you may not get pods/exec",
        ),
        (404, 'pods "box" not found', Gone, "not there"),
    ],
)
def test_a_refusal_is_typed(tmp_path: Path, status: int, message: str, error: type[Exception], says: str) -> None:
    async def scenario() -> None:
        async with api(tmp_path, None, (status, json.dumps({"message": message}))) as client:
            with pytest.raises(error, match=says):
                await dialled(client)

    asyncio.run(scenario())


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api(tmp_path, None):
            pass  # it was there, and is not
        client = Api(str(tmp_path / "config"))
        with pytest.raises(Unreachable, match="does not answer"):
            await dialled(client)
        await client.close()

    asyncio.run(scenario())


def test_one_that_is_silent_for_long_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "_BEAT_S", 0.02)
    let_go = asyncio.Event()

    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + TELLS)
        await let_go.wait()  # and reads nothing, so that no ping is answered

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            carrier = await dialled(client)
            over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            carrier.begin(received=lambda _: None, drained=lambda: None, ended=over.set_result)
            assert "nothing came for" in await asyncio.wait_for(over, DEADLINE_S)
            let_go.set()

    asyncio.run(scenario())


def test_one_that_answers_pings_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "_BEAT_S", 0.01)
    pings = 0

    async def serve(socket: web.WebSocketResponse) -> None:
        nonlocal pings
        await socket.send_bytes(b"\x01" + TELLS)
        while pings < 20:
            message = await socket.receive()
            assert message.type is WSMsgType.PING
            pings += 1
            await socket.pong(message.data)

    async def scenario() -> None:
        async with api(tmp_path, serve) as client:
            carrier = await dialled(client)
            over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            carrier.begin(received=lambda _: None, drained=lambda: None, ended=over.set_result)
            assert "nothing came for" not in await asyncio.wait_for(over, DEADLINE_S)
        assert pings == 20

    asyncio.run(scenario())
