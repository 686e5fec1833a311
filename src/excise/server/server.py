"""Everything that one `excise serve` is made of: sockets, keys, channels, HTTP, and its end."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from excise.errors import SpecError
from excise.server.budget import Budget
from excise.server.door import Denied, Door, Gate, Head
from excise.server.host import Host
from excise.server.keys import Key, Keys
from excise.server.rate import Rate
from excise.server.session import PATIENCE_S, Session
from excise.server.shaking import Shaking
from excise.substrates.remote.where import PORT, is_loopback

_MOST_CHANNELS_OF_ONE = 64
"""Of one key: a trainer has many processes, each with one."""
_MOST_BODIES = 16
"""On their way at once, of one key."""
_BACKLOG = 512
_ANY = ("0.0.0.0", "::")  # noqa: S104 - nobody is called so, nor let in by it
_log = logging.getLogger("excise.server")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where it listens, and by which names it is called."""

    host: str = "127.0.0.1"
    port: int = PORT
    path: str | None = None
    """Of a Unix socket, instead."""
    names: tuple[str, ...] = ()
    """By which clients call it, besides the address itself: what `Host` may say."""
    tls: ssl.SSLContext | None = None
    drain_s: float = 30.0


class Carried(asyncio.Protocol):
    """A connection that carries a session's frames."""

    def __init__(self, session: Session, transport: asyncio.Transport) -> None:
        self._session = session
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._session.channel.take(data, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.channel.broke(self._transport, str(exc) if exc is not None else "its client hung up")


class Server:
    """One substrate, served."""

    def __init__(self, host: Host, keys: Keys, settings: Settings) -> None:
        self.host = host
        self.settings = settings
        self.keys = keys
        self._budgets: dict[str, Budget] = {}
        self._bodies: dict[str, asyncio.Semaphore] = {}
        self.sessions: dict[str, Session] = {}
        self._rates: dict[str, Rate] = {}
        self.door = Door(Gate(self._admit, self._channel, self._http, self._refused))
        self._listening: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._socket: tuple[Path, int] | None = None
        """The Unix socket that we made, and its inode: what else lies at its path is not ours to remove."""
        self.bound = ""
        """Where it listens, as an address that a client takes."""

    # ---- its life

    async def open(self, app: web.Application) -> None:
        """Listen. What is served has been opened before: a server that listens can be asked."""
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        settings = self.settings
        if settings.path is not None:
            path = Path(settings.path)
            sock, inode = _bound(path)
            self._socket = (path, inode)
            self._listening = await loop.create_unix_server(self.door.visitor, sock=sock, backlog=_BACKLOG)
            self.bound = f"unix://{path}"
            return
        try:
            self._listening = await loop.create_server(
                self._arrival, settings.host, settings.port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise SpecError(f"{settings.host}:{settings.port} cannot be listened at: {error.strerror or error}") from None
        sock = self._listening.sockets[0]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = sock.getsockname()[1]
        host = settings.names[0] if settings.host in _ANY and settings.names else settings.host
        shown = f"[{host}]" if ":" in host else host
        self.bound = f"{'https' if settings.tls else 'http'}://{shown}:{port}"

    async def close(self) -> None:
        """No new connection; what is in flight is ended, every sandbox is closed."""
        if self._listening is not None:
            self._listening.close()
        for session in tuple(self.sessions.values()):
            session.close("the server was stopped")
        await self.host.close()
        self.door.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            _forget(*self._socket)

    # ---- who comes in

    def _arrival(self) -> asyncio.Protocol:
        tls = self.settings.tls
        return self.door.visitor() if tls is None else Shaking(self.door, tls)

    def _refused(self, why: str) -> None:
        self.host.figures.refused[why] += 1

    def names(self) -> frozenset[str]:
        """What a request may call us: without its port."""
        own = {self.settings.host, *self.settings.names}
        if self.settings.path is not None or is_loopback(self.settings.host):
            own |= {"localhost", "127.0.0.1", "::1"}
        return frozenset(name.lower() for name in own)

    def _admit(self, head: Head) -> None:
        """A page of another site may make a browser ask us; it says so by Origin, or calls us by its own name."""
        called = _without_port(head.headers.get("host", ""))
        if called not in self.names():
            raise Denied(403, f"this server is not called {called[:80]!r}: start it with --name, or use its address")
        origin = head.headers.get("origin")
        if origin is not None:
            scheme = "https" if self.settings.tls else "http"
            if origin != f"{scheme}://{head.headers.get('host', '')}":
                raise Denied(403, "pages of other sites may not ask this server")

    def key_of(self, given: str | None) -> Key:
        """Denied unless it is one of ours."""
        key = self.keys.find(given)
        if key is None:
            self._refused("key")
            raise Denied(401, "this server wants a key that it knows: Authorization: Bearer KEY")
        return key

    def know(self, keys: Keys) -> None:
        """From now on these keys are let in: who came in with another one is sent away, and its sandboxes are closed."""
        self.keys = keys
        for session in tuple(self.sessions.values()):
            key = keys.by_name.get(session.key.name)
            if key is None or key.sha256 != session.key.sha256:
                session.close("its key was removed")
            else:
                session.key = key
        for name, rate in self._rates.items():
            if name in keys.by_name:
                rate.change(keys.by_name[name].rate)
        self._budgets = {name: budget for name, budget in self._budgets.items() if name in keys.by_name}
        self.host.know(keys.by_name)

    def budget_of(self, key: Key) -> Budget:
        budget = self._budgets.get(key.name)
        if budget is None:
            budget = self._budgets[key.name] = Budget(sandboxes=key.sandboxes)
        return budget

    def bodies_of(self, key: Key) -> asyncio.Semaphore:
        """Who may read a request's body now."""
        return self._bodies.setdefault(key.name, asyncio.Semaphore(_MOST_BODIES))

    def rate_of(self, key: Key) -> Rate:
        rate = self._rates.get(key.name)
        if rate is None:
            rate = self._rates[key.name] = Rate(key.rate)
        return rate

    def _channel(self, head: Head, transport: asyncio.Transport) -> asyncio.Protocol:
        if (head.method, head.path) != ("GET", "/v1/channel"):
            raise Denied(404, "channels are at GET /v1/channel")
        key = self.key_of(head.key)
        channel, had = _channel_terms(head.headers)
        name = f"{key.name}/{channel}"
        session = self.sessions.get(name)
        if had is None:
            if session is not None:
                raise Denied(400, "there is a channel of this name: a new one has a new name")
            if self.host.draining:
                raise Denied(503, "the server is being stopped", retry_s=5.0)
            self._require_room(key)
            session = Session(self.host, key, self.budget_of(key), self.rate_of(key), lambda one: self._ended(name, one))
            self.sessions[name] = session
        elif session is None:
            raise Denied(410, "there is no such channel here any more")
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Connection: Upgrade",
            "Upgrade: excise/1",
            f"Excise-Had: {session.channel.had}",
            f"Excise-Patience: {PATIENCE_S:g}",
        ]
        transport.write("\r\n".join((*lines, "", "")).encode())
        session.connected()
        session.channel.connect(transport, had or 0)
        if session.channel.reason is not None:
            raise Denied(410, session.channel.reason)
        return Carried(session, transport)

    def _require_room(self, key: Key) -> None:
        """For one more channel. Of one whose client is away and waits for nothing, nothing is lost."""
        own = [one for one in self.sessions.values() if one.key.name == key.name]
        if len(own) >= _MOST_CHANNELS_OF_ONE:
            idle = next((one for one in own if one.is_idle), None)
            if idle is None:
                raise Denied(429, f"the key {key.name} has its {_MOST_CHANNELS_OF_ONE} channels", retry_s=1.0)
            idle.channel.fail("another channel has its place")

    def _ended(self, name: str, session: Session) -> None:
        if self.sessions.get(name) is session:
            del self.sessions[name]

    def _http(self) -> asyncio.Protocol:
        assert self._runner is not None
        server = self._runner.server
        assert server is not None
        return server()


def _channel_terms(headers: Mapping[str, str]) -> tuple[str, int | None]:
    channel, had = headers.get("excise-channel", ""), headers.get("excise-had")
    if len(channel) != 32 or not all(letter in "0123456789abcdef" for letter in channel):
        raise Denied(400, "a channel has a name of 32 hexadecimal digits")
    if had is None:
        return channel, None
    if not had.isdigit() or len(had) > 18:
        raise Denied(400, "Excise-Had is how many frames have come")
    return channel, int(had)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def require_safe(settings: Settings, *, keys: bool) -> None:
    """What others can reach wants keys and TLS."""
    if settings.path is not None or is_loopback(settings.host):
        return
    missing = [word for word, there in (("--keys", keys), ("--tls-cert and --tls-key", settings.tls is not None)) if not there]
    if missing:
        raise SpecError(f"{settings.host} can be reached by others: give {' and '.join(missing)}, or listen at 127.0.0.1")
    if settings.host in _ANY and not settings.names:
        raise SpecError(f"nobody calls a server {settings.host}: say by --name what its clients call it, as in their URLs")


def _forget(path: Path, inode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()


def _bound(path: Path) -> tuple[socket.socket, int]:
    """A socket for our own user alone from its first moment, and its inode. Nothing else runs while files are made so."""
    _remove_dead(path)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise SpecError(f"{path} cannot be listened at: {error.strerror or error}") from None
    finally:
        os.umask(before)
    return sock, path.stat().st_ino


def _remove_dead(path: Path) -> None:
    """A socket whose server was killed; one that is answered is somebody's."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise SpecError(f"{path} is there, and is no socket: name another path")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise SpecError(f"a server listens at {path} already")
