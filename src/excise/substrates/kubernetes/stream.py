"""An exec's own connection: a WebSocket whose messages begin with the number of a channel."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from excise.substrates.kubernetes.refusals import refusal

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
_CLOSE = 255
_PIECE_BYTES = 1 << 15
_LONGEST_STATUS_BYTES = 1 << 16


class Socket(ClientWebSocketResponse):
    """One that can be let go of at once: aiohttp's own close waits for the other side's."""

    def __init__(
        self, reader: Any, writer: Any, protocol: str | None, response: ClientResponse, *rest: Any, **more: Any
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **more)
        self._transport = writer.transport
        self._answer = response

    def let_go(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():  # a TLS transport that was closed cannot be aborted
            transport.abort()
        self._answer.close()


class Ending(msgspec.Struct, frozen=True):
    """What the status channel said: an exit code, or why there is none."""

    exit_code: int | None
    message: str = ""


class ExecStream:
    """Output is read only when asked: who does not read stalls this program and nobody else. It is a guestless `Wire`."""

    def __init__(self, socket: Socket, *, terminal: bool) -> None:
        self.id = uuid.uuid4().hex
        self._socket = socket
        self._terminal = terminal
        self._said = bytearray()
        self._over = False
        self.ending: Ending | None = None
        """Known once `frame` has returned None; None then means that the connection broke."""

    @property
    def half_closes(self) -> bool:
        return self._socket.protocol == V5

    async def frame(self) -> tuple[int, bytes] | None:
        """The next piece of output and its channel (1: stdout, 2: stderr); None at the end. Cancelling it loses nothing."""
        while True:
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                if message.type is WSMsgType.TEXT:
                    continue  # no server of ours sends text on these protocols
                self._end()
                return None
            data: bytes = message.data
            if not data:
                continue
            if data[0] in (STDOUT, STDERR):
                if len(data) > 1:
                    return data[0], data[1:]
            elif data[0] == STATUS and len(self._said) < _LONGEST_STATUS_BYTES:
                self._said += data[1:]

    def _end(self) -> None:
        self._over = True
        if self.ending is None and self._said:
            self.ending = _ending(bytes(self._said))

    async def write(self, data: bytes) -> None:
        """Returns once there is room for more."""
        for at in range(0, len(data), _PIECE_BYTES):
            await self._send(bytes((STDIN,)) + data[at : at + _PIECE_BYTES])

    async def close_stdin(self) -> None:
        """The end of stdin; on a terminal, the key that means it. Nothing on a server that has no word for it (v4)."""
        if self._terminal:
            await self.write(b"\x04")
        elif self.half_closes:
            try:
                await self._send(bytes((_CLOSE, STDIN)))
            except BrokenPipeError:
                return  # it has ended: nobody is left to read an end

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(bytes((RESIZE,)) + msgspec.json.encode({"Width": columns, "Height": rows}))

    async def _send(self, message: bytes) -> None:
        try:
            if self._over:
                raise BrokenPipeError
            await self._socket.send_bytes(message)
        except (OSError, RuntimeError, ClientError):  # RuntimeError: the transport is closing
            raise BrokenPipeError("the process does not read its stdin any more") from None

    def close(self) -> None:
        """Let go of it; what runs inside does not notice."""
        self._socket.let_go()


async def open_exec(
    session: ClientSession,
    url: str,
    *,
    container: str,
    argv: Sequence[str],
    stdin: bool,
    tty: bool,
    headers: Sequence[tuple[str, str]],
    where: str,
    to: Mapping[str, Any],
) -> ExecStream:
    """Ask for the program; the server's answer is the stream. A terminal has no stderr of its own."""
    params = [("container", container), ("stdout", "1"), ("stdin", str(int(stdin))), ("tty", str(int(tty)))]
    params += [("stderr", str(int(not tty))), *(("command", word) for word in argv)]
    connect: Any = session.ws_connect  # its keywords are a TypedDict that does not take ours
    try:
        socket = await connect(
            url,
            params=params,
            headers=list(headers),
            protocols=(V5, V4),
            max_msg_size=0,
            autoclose=False,  # which would wait for the other side, on TLS even after all was said
            **_without_name(to),
        )
    except WSServerHandshakeError as error:
        raise refusal(error.status, {"message": error.message}, what="create pods/exec", where=where) from None
    assert isinstance(socket, Socket)
    return ExecStream(socket, terminal=tty)


def _without_name(to: Mapping[str, Any]) -> dict[str, Any]:
    """ws_connect checks the certificate against the URL's name unless told otherwise."""
    return {key: value for key, value in to.items() if value is not None}


def _ending(said: bytes) -> Ending:
    try:
        status: dict[str, Any] = msgspec.json.decode(said)
    except msgspec.DecodeError:
        return Ending(None, said.decode("utf-8", "replace").strip())
    if status.get("status") == "Success":
        return Ending(0)
    details: dict[str, Any] = status.get("details") or {}
    causes: list[dict[str, Any]] = details.get("causes") or []
    for cause in causes:
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return Ending(int(cause["message"]), status.get("message") or "")
    return Ending(None, status.get("message") or "")
