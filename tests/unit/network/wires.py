"""Servers to be reached, and clients that reach them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from excise.network.door import Door
from excise.network.policy import Address, Policy
from excise.network.reach import Lookup, look_up

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Client:
    """One connection to a door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def tunnel(self, host: str, port: int) -> int:
        """Ask for a tunnel; the answer's status."""
        self.writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ")[1])

    async def ask(self, data: bytes) -> bytes:
        """Send, and read to the end."""
        self.writer.write(data)
        return await self.reader.read()


@asynccontextmanager
async def connected(port: int, host: str = "127.0.0.1") -> AsyncGenerator[Client]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def server(talk: Talk, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[int]:
    """A server on this host; its port."""
    talking: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        talking.discard(task)

    made = await asyncio.start_server(served, host, port)
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()
        await made.wait_closed()
        for task in list(talking):
            task.cancel()
        if talking:
            await asyncio.wait(talking)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=64)


@asynccontextmanager
async def door(
    policy: Policy, *, lookup: Lookup = look_up, everybody: int = 1000, **seconds: float
) -> AsyncGenerator[tuple[Door, int]]:
    """A door in this process, and its port."""
    sock = listener()
    made = Door(sock, policy, asyncio.Semaphore(everybody), lookup=lookup, **seconds)
    port = sock.getsockname()[1]
    try:
        yield made, port
    finally:
        await made.close()


def answers(*lists: list[Address]) -> tuple[Lookup, list[str]]:
    """A name server that gives these answers, one after another; and what it was asked."""
    asked: list[str] = []

    async def lookup(name: str) -> list[Address]:
        asked.append(name)
        return lists[len(asked) - 1]

    return lookup, asked
