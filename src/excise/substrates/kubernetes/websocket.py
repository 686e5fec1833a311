"""WebSocket frames (RFC 6455) taken apart as they come, without waiting for whole messages; and those of a client."""

import os
import struct
from collections.abc import Callable

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_LAST, _OPCODE, _MASKED, _LENGTH = 0x80, 0x0F, 0x80, 0x7F
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_LONGEST_CONTROL_BYTES = 125


class FrameError(Exception):
    """The other side sent what no WebSocket server sends."""


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame. It is masked because the standard asks for it, by one operation on the whole of it."""
    length = len(payload)
    if length < _TWO_BYTES:
        head = struct.pack(">BB", _LAST | opcode, _MASKED | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _LAST | opcode, _MASKED | _TWO_BYTES, length)
    else:
        head = struct.pack(">BBQ", _LAST | opcode, _MASKED | _EIGHT_BYTES, length)
    key = os.urandom(4)
    mask = int.from_bytes((key * (length // 4 + 1))[:length], "little")
    return head + key + (int.from_bytes(payload, "little") ^ mask).to_bytes(length, "little")


class Frames:
    """Takes bytes, tells the messages' bytes with the channel each belongs to, and control frames whole.

    A message's first byte is its channel, as Kubernetes has it; what follows is passed on as it comes.
    """

    def __init__(self, channel: Callable[[int, memoryview], None], control: Callable[[int, bytes], None]) -> None:
        self._told, self._control = channel, control
        self._head = bytearray()
        self._opcode = BINARY
        self._left = 0
        self._channel: int | None = None
        self._payload = bytearray()
        self._inside = False

    def take(self, data: memoryview) -> None:
        while data or (self._inside and not self._left):
            if not self._inside:
                data = self._begin(data)
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            if self._opcode >= CLOSE:
                self._payload += piece
            elif piece:
                self._pass_on(piece)
            if not self._left:
                self._end()

    def _begin(self, data: memoryview) -> memoryview:
        """As much of a frame's header as there is."""
        wanted = 2 if len(self._head) < 2 else self._head_bytes()
        taken = data[: wanted - len(self._head)]
        self._head += taken
        data = data[len(taken) :]
        if len(self._head) < 2 or len(self._head) < self._head_bytes():
            return data
        opcode, length = self._head[0] & _OPCODE, self._head[1] & _LENGTH
        if self._head[1] & _MASKED or opcode not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError("a frame that is masked, or of no kind there is")
        if length >= _TWO_BYTES:
            length = int.from_bytes(self._head[2:], "big")
        if opcode >= CLOSE and length > _LONGEST_CONTROL_BYTES:
            raise FrameError("a control frame that is too long")
        if opcode in (TEXT, BINARY):
            self._channel = None
        self._opcode, self._left, self._inside = opcode, length, True
        self._head.clear()
        return data

    def _head_bytes(self) -> int:
        return 2 + {_TWO_BYTES: 2, _EIGHT_BYTES: 8}.get(self._head[1] & _LENGTH, 0)

    def _pass_on(self, piece: memoryview) -> None:
        if self._channel is None:
            self._channel, piece = piece[0], piece[1:]
        if piece:
            self._told(self._channel, piece)

    def _end(self) -> None:
        self._inside = False
        if self._opcode >= CLOSE:
            payload = bytes(self._payload)
            self._payload.clear()
            self._control(self._opcode, payload)
