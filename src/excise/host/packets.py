"""Requests and answers between client, keeper and runner: one packet each, JSON, with descriptors beside it.

A request's body travels in a memory file, since an argv or a script may be larger than a packet can be.
"""

import array
import json
import os
import socket
from typing import Any

_MOST_DESCRIPTORS = 8
_PACKET_BYTES = 65536
_INTEGER = array.array("i")


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def memory_file(data: bytes) -> int:
    """A descriptor that reads `data` from its beginning."""
    descriptor = os.memfd_create("excise")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def body(request: dict[str, Any]) -> int:
    return memory_file(json.dumps(request).encode())


def send(sock: socket.socket, descriptors: list[int], note: dict[str, Any] | None = None) -> None:
    socket.send_fds(sock, [json.dumps(note or {}).encode()], descriptors)


def tell(sock: socket.socket, record: dict[str, Any]) -> None:
    """Send an answer; one that a packet cannot hold, such as a long list of files, as a memory file beside it."""
    data = json.dumps(record).encode()
    if len(data) <= _PACKET_BYTES:
        sock.send(data)
        return
    descriptor = memory_file(data)
    try:
        send(sock, [descriptor])
    finally:
        os.close(descriptor)


def hear(sock: socket.socket) -> dict[str, Any] | None:
    """The next answer; None when the other side is gone."""
    packet = receive(sock)
    if packet is None:
        return None
    record, descriptors = packet
    return read_body(descriptors[0]) if descriptors else record


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and its descriptors (closed on exec); None when the other side is gone."""
    room = socket.CMSG_LEN(_MOST_DESCRIPTORS * _INTEGER.itemsize)
    try:
        # Not socket.recv_fds: it drops its flags, and a descriptor not closed on exec would reach sandboxed programs.
        data, extra, _, _ = sock.recvmsg(_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    descriptors = array.array("i")
    for level, kind, payload in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % _INTEGER.itemsize])
    if not data:
        return None
    return decode(data), list(descriptors)


def decode(data: bytes) -> dict[str, Any]:
    return json.loads(data)


def read_body(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        return json.loads(file.read())
