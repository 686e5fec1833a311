"""A machine's console: what the kernel and the boot program say. Its end is kept, and shown in every error of the machine."""

import asyncio
import socket
import time

from excise.vmm.kept import place

_KEPT_BYTES = 64 << 10
_SHOWN = 1500
_LOGS_KEPT = 20


class Console:
    """Read as it comes and bounded: whoever is root in the machine can write to it without end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._kept = bytearray()
        self._awaited: tuple[bytes, asyncio.Future[None]] | None = None
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._kept += data
        if self._awaited is not None and self._awaited[0] in self._kept and not self._awaited[1].done():
            self._awaited[1].set_result(None)
        if len(self._kept) > 2 * _KEPT_BYTES:
            del self._kept[:-_KEPT_BYTES]

    async def says(self, words: bytes) -> None:
        """Return once these words were seen on it; one waits at a time."""
        if words not in self._kept:
            self._awaited = (words, self._loop.create_future())
            await self._awaited[1]

    def tail(self) -> str:
        """Its last lines, for an error's text; read to the end of what has come."""
        while self._sock.fileno() >= 0:
            before = len(self._kept)
            self._readable()
            if len(self._kept) == before:
                break
        text = self._kept.decode("utf-8", "replace").replace("\r", "").strip()
        panic = text.rfind("Kernel panic")
        if panic >= 0:  # what led to it and its own words, rather than the end of its stack
            text = text[: panic + _SHOWN // 2]
        return text[-_SHOWN:]

    def keep(self, name: str) -> None:
        """Write what is left of it to the cache, for somebody who wants to see more than an error shows; a few are kept."""
        logs = place("consoles")
        try:
            logs.mkdir(mode=0o700, exist_ok=True)
            for old in sorted(logs.iterdir(), key=lambda path: path.name)[: -_LOGS_KEPT + 1]:
                old.unlink(missing_ok=True)
            (logs / f"{time.time_ns()}-{name}.log").write_bytes(self._kept)
        except OSError:
            return  # a full disk is told by what else fails

    def close(self) -> None:
        """Twice is fine."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
