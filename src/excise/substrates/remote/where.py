"""Where a server is, and the key that it knows us by."""

import contextlib
import ipaddress
import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from excise.errors import SpecError

PORT = 8700
KEY = "EXCISE_KEY"
KEYS = "EXCISE_KEYS"
"""A file of lines `https://host:8700 KEY`, for who has several servers."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. The key is looked up when it is needed, and is no part of the address."""

    url: str
    host: str = ""
    port: int = 0
    tls: bool = False
    path: str | None = None
    """Of a Unix socket."""

    @property
    def authority(self) -> str:
        """What goes into the header `Host`."""
        if self.path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def where(url: str) -> Where:
    """SpecError, which shows what one looks like, unless it is the URL of a server."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise SpecError(f"a key in a URL would be in every result and log: leave it out, and set {KEY}")
    if parts.query or parts.fragment:
        raise _malformed(url, "it takes no options")
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise _malformed(url, "a Unix socket is named by its whole path")
        return Where(url=url, path=parts.path)
    if parts.path not in ("", "/"):
        raise _malformed(url, f"{parts.path!r} leads nowhere")
    try:
        port = parts.port
    except ValueError:
        raise _malformed(url, "its port is no number up to 65535") from None
    if not parts.hostname:
        raise _malformed(url, "no host follows")
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise SpecError(f"{url} would show its key to everybody on the way: call it https://, or come by a tunnel to localhost")
    return Where(url=url.rstrip("/"), host=parts.hostname, port=port or PORT, tls=parts.scheme == "https")


def is_loopback(host: str) -> bool:
    """Of this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _malformed(url: str, reason: str) -> SpecError:
    return SpecError(f"{url!r} is no server's URL: {reason}; one looks like https://host:{PORT} or unix:///run/excise.sock")


def key_for(there: Where) -> str | None:
    """What the environment says, or a file for this server, or what a server of our own user's on this machine has written."""
    if said := os.environ.get(KEY):
        return _sendable(said.strip())
    if named := os.environ.get(KEYS):
        return _sendable(_in_file(Path(named), there))
    return _of_our_own(there)


def _sendable(key: str | None) -> str | None:
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise SpecError(f"{KEY} or {KEYS} has a key that no server gave out: it is one word of letters and digits")
    return key


def _in_file(path: Path, there: Where) -> str | None:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise SpecError(f"{KEYS}={path} cannot be read: {error.strerror}") from None
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0].rstrip("/") == there.url:
            return words[1]
    return None


def own_key_path(port_or_socket: str) -> Path:
    """Where a server that was given no keys leaves the one it made, for its own user: named by its port or socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or ("/run" if os.geteuid() == 0 else f"/run/user/{os.geteuid()}")
    top = Path(runtime) if Path(runtime).is_dir() else Path(f"/tmp/excise-{os.geteuid()}")  # noqa: S108 - made 0700, checked below
    return top / "excise-serve" / f"{port_or_socket.strip('/').replace('/', '-')}.key"


def _of_our_own(there: Where) -> str | None:
    if there.path is None and there.host not in ("localhost", "127.0.0.1", "::1"):
        return None
    path = own_key_path(there.path or str(there.port))
    try:
        seen = path.parent.stat()
        if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
            return None  # somebody else's, who would learn nothing, but whom we would believe
        return path.read_text().strip()
    except OSError:
        return None


def context(there: Where) -> ssl.SSLContext | None:
    """With the certificates that this machine trusts; SSL_CERT_FILE names others."""
    return ssl.create_default_context() if there.tls else None
