"""A hop that makes the way longer, and breaks: python -m excise.substrates.hosted.hop PORT RTT_MS

Whatever comes from one side goes on to the other after half of the round trip, in order and in full. A thread for each
direction sleeps until it is due: an event loop's timers are a millisecond coarse, which is all there is to measure here. As a
program it prints its own port, and ends when its standard input does; as a `Hop` it can be cut.
"""

import contextlib
import queue
import socket
import struct
import sys
import threading
import time

_PIECE_BYTES = 1 << 16
_MOST_PIECES = 1024
"""On their way in one direction: 64 MiB, more than any window of ours."""
_AT_ONCE = struct.pack("ii", 1, 0)
_Way = queue.Queue[tuple[float, bytes | None]]
"""Pieces and when they are due; an empty one ends it, None cuts everything."""


class Hop:
    """To a port of this machine, for whoever connects to `port`. Threads of its own do all of it."""

    def __init__(self, there: int, half_s: float = 0.0) -> None:
        self._there = there
        self._half_s = half_s
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._passes: int | None = None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection there is, in both directions, without a word."""
        with self._lock:
            self.cuts += 1
            self._passes = None
            cut, self._open = self._open, set()
        for one in cut:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                one.shutdown(socket.SHUT_RDWR)

    def cut_after(self, count: int | None) -> None:
        """Pass on so many bytes more, of both directions together, and cut; None: do not."""
        with self._lock:
            self._passes = count

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return  # it was closed
            try:
                there = socket.create_connection(("127.0.0.1", self._there))
            except OSError:
                here.close()
                continue
            with self._lock:
                self._open |= {here, there}
            for one in (here, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((here, there), (there, here)):
                way: _Way = queue.Queue(_MOST_PIECES)
                threading.Thread(target=self._read, args=(source, way), daemon=True).start()
                threading.Thread(target=self._write, args=(sink, way), daemon=True).start()

    def _read(self, source: socket.socket, way: _Way) -> None:
        is_over = False
        while not is_over:
            try:
                data = source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            is_over = not data
            data, is_cut = self._allowed(data)
            due_s = time.monotonic() + self._half_s
            if data or is_over:
                way.put((due_s, data))
            if is_cut:
                way.put((due_s, None))

    def _allowed(self, data: bytes) -> tuple[bytes, bool]:
        """What of it goes on, and whether a cut follows."""
        with self._lock:
            if self._passes is None or not data:
                return data, False
            allowed = data[: self._passes]
            self._passes -= len(allowed)
            return allowed, not self._passes

    def _write(self, sink: socket.socket, way: _Way) -> None:
        with sink:
            while True:
                due_s, data = way.get()
                if (left_s := due_s - time.monotonic()) > 0:
                    time.sleep(left_s)
                if data is None:
                    self.cut()
                    continue
                with contextlib.suppress(OSError):
                    if not data:
                        sink.shutdown(socket.SHUT_RDWR)
                        break
                    sink.sendall(data)
        with self._lock:
            self._open.discard(sink)


def main() -> None:
    hop = Hop(int(sys.argv[1]), float(sys.argv[2]) / 2000)
    sys.stdout.write(f"{hop.port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
