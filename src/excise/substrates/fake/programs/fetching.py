"""A program that goes out: the one line of perl with which the contract asks a server something."""

import re
import socket

from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.voice import complain

PATIENCE_S = 10.0


async def fetch(proc: Proc, argv: list[str]) -> int:
    """What the HTTP server at the last two words says, if this machine may reach it."""
    host, port = argv[-2], int(argv[-1])
    if not proc.machine.may_reach(host, port):
        return await complain(proc, "perl", "Died: Network is unreachable")
    # A real server of the host, asked without giving up the turn: on a virtual clock no time passes meanwhile.
    with socket.create_connection((host, port), PATIENCE_S) as server:
        server.sendall(f"GET http://{host}:{port}/ HTTP/1.0\r\n\r\n".encode())
        heard = b"".join(iter(lambda: server.recv(65536), b""))
    said = re.fullmatch(rb"HTTP/1\.. 200 .*?\r\n\r\n(.*)", heard, re.DOTALL)
    if said is None:
        return await complain(proc, "perl", "Died")
    await proc.write(1, said[1])
    return 0
