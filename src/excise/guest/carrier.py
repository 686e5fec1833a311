"""What carries frames: a socket of ours, or any byte stream that can be sent to and tells what it receives."""

import asyncio
import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

_SCRATCH_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 20


class Carrier(Protocol):
    """A byte stream in both directions."""

    @property
    def waiting_bytes(self) -> int:
        """What was sent and the other side has not taken yet."""
        ...

    def begin(
        self, *, received: Callable[[memoryview], None], drained: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        """From now on tell what comes (valid only during the call), that nothing waits any more, and why it ended, once."""
        ...

    def send(self, data: bytes) -> None:
        """Never waits; what the other side does not take is kept. After the end it goes nowhere."""
        ...

    def close(self) -> None:
        """Nothing is told any more. Twice is fine."""
        ...


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection: ours and the guest's, with room for a whole window on the way."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends


class SocketCarrier:
    """A stream socket, read and written directly: asyncio's own streams take several steps of the loop for each frame."""

    def __init__(self, sock: socket.socket, scratch: bytearray | None = None) -> None:
        """`scratch` is where bytes are received; who holds many sockets on one loop gives all of them the same."""
        sock.setblocking(False)
        self._sock = sock
        # The loop is told the number: given a socket, it asks the kernel for its addresses each time, for a message it drops.
        self._number = sock.fileno()
        self._scratch = memoryview(scratch if scratch is not None else bytearray(_SCRATCH_BYTES))
        self._loop = asyncio.get_running_loop()
        self._queue: deque[memoryview] = deque()
        self._received: Callable[[memoryview], None] = _nothing
        self._drained: Callable[[], None] = _nothing
        self._ended: Callable[[str], None] = _nothing
        self._closed = False
        self._deaf = False
        self.waiting_bytes = 0

    def begin(
        self, *, received: Callable[[memoryview], None], drained: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        self._received, self._drained, self._ended = received, drained, ended
        self._loop.add_reader(self._number, self._readable)

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._over(f"its connection broke ({error.strerror})")
            return
        if count:
            self._received(self._scratch[:count])
        else:
            self._over("it closed its connection")

    def read_now(self) -> None:
        """Tell all that has come, without waiting for the loop."""
        while not self._closed and select.select([self._number], [], [], 0)[0]:
            self._readable()

    def _over(self, reason: str) -> None:
        ended = self._ended
        self.close()
        ended(reason)

    def send(self, data: bytes) -> None:
        if self._deaf:
            return
        sent = 0
        if not self._queue:
            sent = self._push(data)
            if sent == len(data):
                return
            self._loop.add_writer(self._number, self._writable)
        self._queue.append(memoryview(data)[sent:])
        self.waiting_bytes += len(data) - sent

    def _push(self, data: bytes | memoryview) -> int:
        """How much was taken. A peer that is gone takes everything: what it still said, and its end, is there to be read."""
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._deaf = True
            return len(data)

    def _writable(self) -> None:
        while self._queue:
            piece = self._queue.popleft()
            sent = self._push(piece)
            self.waiting_bytes -= sent
            if sent < len(piece):
                self._queue.appendleft(piece[sent:])
                return
        self._loop.remove_writer(self._number)
        self._drained()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._deaf = True
        self._received = self._drained = self._ended = _nothing
        self._queue.clear()
        self.waiting_bytes = 0
        self._loop.remove_reader(self._number)
        self._loop.remove_writer(self._number)
        # A process forked from this one meanwhile holds the socket as well; the guest must see the end all the same.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _nothing(*_: object) -> None:
    """Told to nobody."""
