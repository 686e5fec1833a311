"""A link that makes the way longer, packet by packet: python -m excise.substrates.hosted.link PORT RTT_MS

Two network namespaces of its own, joined by this process: what one's TUN device sends arrives at the other's after half of
the round trip. So TCP itself is far away: its handshake, its acknowledgements and its windows, which `hop` knows nothing of.
It takes connections on loopback, carries each over the link, and hands it to PORT on loopback. It needs root; it prints its
own port, and ends, with the namespaces, when its standard input does.
"""

import contextlib
import ctypes
import fcntl
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFDSTADDR = 0x8914, 0x8916, 0x8918
_UP = 0x1
_NAME = b"excise0"
_NEAR, _FAR = "10.171.0.1", "10.171.0.2"
_PORT = 8700
_PACKET_BYTES = 1 << 16
_MOST_PACKETS = 4096
"""On their way in one direction; what comes beyond is dropped, as a router would."""
T = TypeVar("T")


def main() -> None:
    port, half_s = int(sys.argv[1]), float(sys.argv[2]) / 2000
    near, far = _End(_NEAR, _FAR), _End(_FAR, _NEAR)
    for source, sink in ((near, far), (far, near)):
        way: queue.Queue[tuple[float, bytes]] = queue.Queue(_MOST_PACKETS)
        _thread(_take, source.device, way, half_s)
        _thread(_give, sink.device, way)
    arriving = far.inside(lambda: socket.create_server((_FAR, _PORT)))
    listening = socket.create_server(("127.0.0.1", 0))
    _thread(_relay, listening, lambda: near.inside(lambda: socket.create_connection((_FAR, _PORT))))
    _thread(_relay, arriving, lambda: socket.create_connection(("127.0.0.1", port)))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


class _End:
    """A network namespace with one device. A thread lives in it: a socket belongs to where it was made."""

    def __init__(self, address: str, peer: str) -> None:
        self._asked: queue.Queue[Callable[[], object]] = queue.Queue()
        self._answers: queue.Queue[object] = queue.Queue()
        self._turn = threading.Lock()
        _thread(self._live)
        self.device = self.inside(lambda: _device(address, peer))

    def _live(self) -> None:
        while True:
            asked = self._asked.get()
            try:
                self._answers.put(asked())
            except Exception as error:  # noqa: BLE001 - raised by whoever asked
                self._answers.put(error)

    def inside(self, ask: Callable[[], T]) -> T:
        with self._turn:
            self._asked.put(ask)
            answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer  # pyright: ignore[reportReturnType] - what `ask` gave


def _device(address: str, peer: str) -> int:
    """In a namespace of its own, which this thread is in from now on: a device that is up, as its descriptor."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace cannot be made: packets=1 needs root")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _NAME, _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, number in ((_SIOCSIFADDR, address), (_SIOCSIFDSTADDR, peer)):
            named = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(number))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", _NAME, named))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", _NAME, _UP))
    return device


def _take(device: int, way: "queue.Queue[tuple[float, bytes]]", half_s: float) -> None:
    while True:
        packet = os.read(device, _PACKET_BYTES)
        with contextlib.suppress(queue.Full):
            way.put_nowait((time.monotonic() + half_s, packet))


def _give(device: int, way: "queue.Queue[tuple[float, bytes]]") -> None:
    while True:
        due_s, packet = way.get()
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        with contextlib.suppress(OSError):
            os.write(device, packet)


def _relay(listening: socket.socket, dial: Callable[[], socket.socket]) -> None:
    while True:
        here, _ = listening.accept()
        try:
            there = dial()
        except OSError:
            here.close()
            continue
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _thread(_copy, here, there)
        _thread(_copy, there, here)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PACKET_BYTES):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _thread(run: Callable[..., None], *words: object) -> None:
    threading.Thread(target=run, args=words, daemon=True).start()


if __name__ == "__main__":
    main()
