"""QEMU's control socket: a command out, its answer back; and events, of which one says that the guest panicked."""

import asyncio
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from excise.errors import SandboxLost, SubstrateError

_LONGEST_LINE = 1 << 20


class Qmp(asyncio.Protocol):
    """Our end. Commands are answered in order; whoever waits when the connection ends hears of that."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._beside: socket.socket | None = None
        self._part = b""
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._watched: list[tuple[str, asyncio.Future[dict[str, Any]]]] = []
        self._over = False

    @classmethod
    async def open(cls, sock: socket.socket) -> "Qmp":
        """Take the socket over. The greeting need not be awaited: commands are sent after it all the same."""
        sock.setblocking(False)
        qmp = cls()
        qmp._beside = sock.dup()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: qmp, sock)
        except BaseException:
            qmp.close()
            raise
        return qmp

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> "asyncio.Future[Any]":
        """Its answer, to be awaited. Several may be on their way."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._over or self._transport is None:
            answer.set_exception(SandboxLost("the virtual machine's monitor is gone"))
            return answer
        message: dict[str, Any] = {"execute": command}
        if arguments:
            message["arguments"] = arguments
        self._waiting.append(answer)
        self._transport.write(msgspec.json.encode(message) + b"\n")
        return answer

    async def hand_over(self, name: str, descriptor: int) -> None:
        """Give QEMU a descriptor, which `fd:NAME` means from then on; it is closed there when it was used."""
        if self._transport is None or self._beside is None or self._over:
            raise SandboxLost("the virtual machine's monitor is gone")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        message = msgspec.json.encode({"execute": "getfd", "arguments": {"fdname": name}}) + b"\n"
        # A short message on a socket whose reader is quick: there is room. Behind what waits it would be out of order.
        assert not self._transport.get_write_buffer_size()
        socket.send_fds(self._beside, [message], [descriptor])
        await answer

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        return await self.send(command, arguments)

    def event(self, name: str) -> "asyncio.Future[dict[str, Any]]":
        """The data of the next event called `name`; ask before the command that leads to it."""
        told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._watched.append((name, told))
        return told

    # ---- a Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Nothing is taken before the capabilities were negotiated, in answer to the greeting that is already on its way.
        self.send("qmp_capabilities")

    def data_received(self, data: bytes) -> None:
        *lines, self._part = (self._part + data).split(b"\n")
        if len(self._part) > _LONGEST_LINE:
            self.close()
            return
        for line in lines:
            if line.strip():
                self._take(msgspec.json.decode(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            for watched in [each for each in self._watched if each[0] == message["event"]]:
                self._watched.remove(watched)
                if not watched[1].done():
                    watched[1].set_result(message.get("data", {}))
        elif "return" in message or "error" in message:
            answer = self._waiting.popleft()
            if answer.done():
                return  # whoever asked gave up
            if "error" in message:
                answer.set_exception(SubstrateError(f"QEMU refused: {message['error'].get('desc')}"))
                answer.exception()  # read: one that nobody awaits any more is no news
            else:
                answer.set_result(message["return"])

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        for waiting in (*self._waiting, *(told for _, told in self._watched)):
            if not waiting.done():
                waiting.set_exception(SandboxLost("the virtual machine's monitor is gone"))
                waiting.exception()
        self._waiting.clear()
        self._watched.clear()

    def close(self) -> None:
        """Twice is fine."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if self._beside is not None:
            self._beside.close()
            self._beside = None
