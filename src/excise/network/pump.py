"""Bytes both ways between two sockets, with one piece in memory each way: who does not read stalls who writes."""

import asyncio
import socket

from excise.network.request import PIECE_BYTES


async def pump(one: socket.socket, other: socket.socket, *, idle_s: float) -> None:
    """Until both directions have ended. OSError if one fails; TimeoutError, which is one, if nothing moves for `idle_s`."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(idle_s) as idle:

        async def copy(source: socket.socket, target: socket.socket) -> None:
            while piece := await loop.sock_recv(source, PIECE_BYTES):
                await loop.sock_sendall(target, piece)
                if not idle.expired():
                    idle.reschedule(loop.time() + idle_s)
            target.shutdown(socket.SHUT_WR)  # one direction may end long before the other

        ways = [asyncio.ensure_future(copy(one, other)), asyncio.ensure_future(copy(other, one))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
