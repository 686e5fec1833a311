"""Keep the beginning and the end of a stream in bounded memory, and count what was dropped."""

from excise.action import Keep


class Kept:
    """A stream's head and tail: at most head + 2 x tail bytes of memory, whatever is fed and in whatever pieces."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._head = bytearray()
        self._tail = bytearray()
        self._fed = 0

    def feed(self, data: bytes) -> None:
        self._fed += len(data)
        room = self._keep.head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed at twice its size, not at every piece: a flood of small pieces costs no more than a few large ones.
        if len(self._tail) > 2 * self._keep.tail_bytes:
            self._trim()

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._keep.tail_bytes)]

    def bytes(self) -> bytes:
        self._trim()
        return bytes(self._head) + bytes(self._tail)

    @property
    def dropped_bytes(self) -> int:
        self._trim()
        return self._fed - len(self._head) - len(self._tail)
