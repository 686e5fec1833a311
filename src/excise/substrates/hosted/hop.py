"""A hop that makes the way longer: python -m excise.substrates.hosted.hop PORT RTT_MS

Whatever comes from one side goes on to the other after half of the round trip, in order and in full. A thread for each
direction sleeps until it is due: an event loop's timers are a millisecond coarse, which is all there is to measure here. It
prints its own port, and ends when its standard input does.
"""

import contextlib
import queue
import socket
import sys
import threading
import time

_PIECE_BYTES = 1 << 16
_MOST_PIECES = 1024
"""On their way in one direction: 64 MiB, more than any window of ours."""


def main() -> None:
    port, half_s = int(sys.argv[1]), float(sys.argv[2]) / 2000
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=_accept, args=(listening, port, half_s), daemon=True).start()
    sys.stdin.buffer.read()


def _accept(listening: socket.socket, port: int, half_s: float) -> None:
    while True:
        here, _ = listening.accept()
        try:
            there = socket.create_connection(("127.0.0.1", port))
        except OSError:
            here.close()
            continue
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((here, there), (there, here)):
            way: queue.Queue[tuple[float, bytes]] = queue.Queue(_MOST_PIECES)
            threading.Thread(target=_read, args=(source, way, half_s), daemon=True).start()
            threading.Thread(target=_write, args=(sink, way), daemon=True).start()


def _read(source: socket.socket, way: "queue.Queue[tuple[float, bytes]]", half_s: float) -> None:
    data = b"more"
    while data:
        try:
            data = source.recv(_PIECE_BYTES)
        except OSError:
            data = b""
        way.put((time.monotonic() + half_s, data))


def _write(sink: socket.socket, way: "queue.Queue[tuple[float, bytes]]") -> None:
    while True:
        due_s, data = way.get()
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        with contextlib.suppress(OSError):
            if not data:
                sink.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(data)


if __name__ == "__main__":
    main()
