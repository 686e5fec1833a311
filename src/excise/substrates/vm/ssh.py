"""One ssh connection to a machine, kept open: an exec of it is a channel, and so is a connection to a port inside."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from excise.errors import CreateError, SandboxLost, SubstrateError
from excise.substrates.vm import boot

_HELD_BYTES = 1 << 18
"""Output that is held while nobody reads it; then the channel's own window fills, and the program stalls."""
_USER = "root"
_NAME = "sandbox"
STDERR = 2
SILENT_S = 180.0
"""Every command of ours says something within this, however slow the machine is, or never will."""
_ROUSE_S = 5.0
T = TypeVar("T")
SshClient: TypeAlias = Any
"""asyncssh's SSHClientConnection, whose types say too little to be of use."""


def library() -> Any:
    """asyncssh, which takes a while to import and is an extra of its own."""
    try:
        import asyncssh  # noqa: PLC0415 - 0.2 s that `import excise` should not pay
    except ImportError:
        raise SubstrateError("vm speaks ssh with asyncssh, which is not installed: pip install 'excise[vm]'") from None
    return asyncssh


class Keys:
    """The keys of one machine: who it is, and who may enter. Made for it, and gone with it."""

    def __init__(self) -> None:
        asyncssh = library()
        self.client = asyncssh.generate_private_key("ssh-ed25519")
        self._host = asyncssh.generate_private_key("ssh-ed25519")

    def files(self) -> dict[str, bytes]:
        """What the machine is given."""
        return {
            "host_key": self._host.export_private_key("openssh"),
            "authorized_keys": self.client.export_public_key("openssh"),
            "sshd_config": boot.text("sshd_config"),
        }

    def known_hosts(self) -> Any:
        """The machine's key, and no other, is believed."""
        return library().import_known_hosts(f"{_NAME} {self._host.export_public_key('openssh').decode()}")


async def connect(sock: socket.socket, keys: Keys) -> SshClient:
    """Take the socket over. The machine may still be booting: it answers when its sshd does; the deadline is the caller's."""
    asyncssh = library()
    sock.setblocking(False)
    try:
        return await asyncssh.connect(
            sock=sock,
            host=_NAME,
            username=_USER,
            client_keys=[keys.client],
            known_hosts=keys.known_hosts(),
            config=None,
            agent_path=None,
            # The link cannot be listened to, and an emulated processor pays for every byte: the cheapest that both sides have.
            encryption_algs=["aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com"],
            compression_algs=["none"],
            login_timeout=0,
            connect_timeout=None,
            # It is asked only so that an interrupt comes: an emulated machine was seen to wait for one that had been lost. Who
            # answers late, or is paused, is not hung up on.
            keepalive_interval=_ROUSE_S,
            keepalive_count_max=1 << 31,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise CreateError(f"the machine that answered is not the one that was made: {error}") from None
    except (asyncssh.Error, OSError) as error:
        raise SandboxLost(f"ssh into the machine failed ({error})") from None


def _never() -> bool:
    return False


async def _unless_silent(work: Coroutine[Any, Any, T], paused: Callable[[], bool]) -> T:
    """What `work` leads to; TimeoutError if it takes so long that the machine must be stuck, and nobody has paused it."""
    task = asyncio.ensure_future(work)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=SILENT_S)
            if done:
                return task.result()
            if not paused():
                raise TimeoutError
    finally:
        task.cancel()


class SshWire:
    """A channel as the connection of one exec. It is an SSHClientSession: asyncssh calls the methods at the end."""

    def __init__(self) -> None:
        self._channel: Any = None
        self._terminal = False
        self._frames: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._paused = False
        self._over = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._answered = False
        self._exit_code: int | None = None
        self._paused_machine: Callable[[], bool] = _never

    @classmethod
    async def open(
        cls, connection: SshClient, command: str, *, terminal: bool = False, paused: Callable[[], bool]
    ) -> "SshWire":
        """Run `command`, which says something soon, by the machine's shell. `paused`: whether it cannot, for now."""
        asyncssh = library()
        size = {"term_type": "xterm", "term_size": (80, 24)} if terminal else {}
        opening = connection.create_session(cls, command, encoding=None, request_pty=terminal, **size)
        try:
            _, wire = await _unless_silent(opening, paused)
        except TimeoutError:
            raise SandboxLost(f"the machine's sshd said nothing for {SILENT_S:g} s") from None
        except asyncssh.ChannelOpenError as error:
            raise SandboxLost(f"the machine's sshd starts no command ({error.reason})") from None
        except (asyncssh.Error, OSError) as error:
            raise SandboxLost(f"the ssh connection to the machine is gone ({error})") from None
        wire._terminal, wire._paused_machine = terminal, paused
        return wire

    # ---- a Wire

    @property
    def id(self) -> str:
        return str(id(self))

    @property
    def half_closes(self) -> bool:
        return True

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    async def frame(self) -> tuple[int, bytes] | None:
        while not self._frames:
            if self._over:
                return None
            self._news.clear()
            if self._answered:
                await self._news.wait()
                continue
            try:
                await _unless_silent(self._news.wait(), self._paused_machine)
            except TimeoutError:
                return None  # as if it had hung up: a kernel that is stuck never will
        self._answered = True
        stream, data = self._frames.popleft()
        self._held_bytes -= len(data)
        if self._paused and self._held_bytes <= _HELD_BYTES // 2:
            self._paused = False
            self._channel.resume_reading()
        return stream, data

    async def write(self, data: bytes) -> None:
        await self._room.wait()
        gone = self._over or self._channel.is_closing()
        if not gone:
            try:
                self._channel.write(data)
            except OSError:
                gone = True
        if gone:
            raise BrokenPipeError("the process does not read its stdin any more")
        await self._room.wait()

    async def close_stdin(self) -> None:
        if self._terminal:
            await self.write(b"\x04")
        elif not self._over and not self._channel.is_closing():
            try:
                self._channel.write_eof()
            except OSError:
                return  # it has ended: nobody is left to read an end

    async def resize(self, rows: int, columns: int) -> None:
        if not self._over and not self._channel.is_closing():
            self._channel.change_terminal_size(columns, rows)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.abort()
        self._end()

    # ---- an SSHClientSession

    def connection_made(self, chan: Any) -> None:
        self._channel = chan

    def session_started(self) -> None:
        """Nothing is sent before the wire's owner sends it."""

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._over:
            return
        self._frames.append((STDERR if datatype is not None else 1, data))
        self._held_bytes += len(data)
        if not self._paused and self._held_bytes > _HELD_BYTES:
            self._paused = True
            self._channel.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """What it left running may hold its pipes, or not: the exit tells the end of an action, never this."""
        return True

    def exit_status_received(self, status: int) -> None:
        """Of the action itself the wrapping shell has said it, where the program cannot forge it."""
        self._exit_code = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """As above."""

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._over = True
        self._room.set()
        self._news.set()


class SshConnection:
    """A byte stream to a port inside, as a channel."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, connection: SshClient, port: int) -> "SshConnection":
        asyncssh = library()
        try:
            reader, writer = await connection.open_connection("127.0.0.1", port, encoding=None)
        except asyncssh.ChannelOpenError as error:
            raise ConnectionRefusedError(f"nothing in the sandbox listens on port {port} ({error.reason})") from None
        except (asyncssh.Error, OSError) as error:
            raise SandboxLost(f"the ssh connection to the machine is gone ({error})") from None
        return cls(reader, writer)

    async def read(self) -> bytes:
        try:
            return await self._reader.read(1 << 16)
        except (library().Error, OSError):
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (library().Error, OSError):
            raise BrokenPipeError("the other side has closed the connection") from None

    async def close(self) -> None:
        self._writer.channel.abort()
