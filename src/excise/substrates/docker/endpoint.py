"""Where the daemon is: DOCKER_HOST, DOCKER_CONTEXT and the docker command's own current context, in its order."""

import asyncio
import hashlib
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from excise.errors import SpecError

DEFAULT_URL = "unix:///var/run/docker.sock"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An address, who named it, and the certificates to show there."""

    url: str
    named_by: str
    """For error texts: the option, variable or context that chose the address."""
    certificates: Path | None = None
    """A directory with ca.pem, cert.pem and key.pem."""
    verify: bool = True

    @property
    def here(self) -> bool:
        """Whether the daemon sees this machine's files."""
        parts = urlsplit(self.url)
        return parts.scheme == "unix" or parts.hostname in ("localhost", "127.0.0.1", "::1")

    @property
    def socket(self) -> str | None:
        return urlsplit(self.url).path if self.url.startswith("unix://") else None

    @property
    def encrypted(self) -> bool:
        return self.certificates is not None or self.url.startswith("https://")

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context, where the address calls for one."""
        if self.certificates is None:
            return ssl.create_default_context() if self.url.startswith("https://") else None
        try:
            return _tls(self.certificates, verify=self.verify)
        except (OSError, ssl.SSLError) as error:
            raise SpecError(f"the TLS files in {self.certificates} ({self.named_by}) do not load: {error}") from None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own, for a stream that takes one over."""
        if self.socket is not None:
            return await asyncio.open_unix_connection(self.socket)
        parts = urlsplit(self.url)
        tls = self.tls()
        return await asyncio.open_connection(parts.hostname, parts.port or (2375 if tls is None else 2376), ssl=tls)

    async def take_over(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """The same, for who takes the bytes as they come."""
        loop = asyncio.get_running_loop()
        if self.socket is not None:
            await loop.create_unix_connection(protocol, self.socket)
            return
        parts = urlsplit(self.url)
        tls = self.tls()
        await loop.create_connection(
            protocol, parts.hostname or "localhost", parts.port or (2375 if tls is None else 2376), ssl=tls
        )


def resolve(host: str | None, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint that `host`, else DOCKER_HOST, else the context in force names."""
    config = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    if host:
        return _checked(_from_environment(host, "host=", config, environ))
    if environ.get("DOCKER_HOST"):
        return _checked(_from_environment(environ["DOCKER_HOST"], "DOCKER_HOST", config, environ))
    name, named_by = environ.get("DOCKER_CONTEXT"), "DOCKER_CONTEXT"
    if not name:
        name, named_by = _current_context(config), f"currentContext in {config / 'config.json'}"
    if not name or name == "default":
        return _checked(_from_environment(DEFAULT_URL, "the default", config, environ))
    return _checked(_from_context(name, named_by, config))


def _from_environment(url: str, named_by: str, config: Path, environ: Mapping[str, str]) -> Endpoint:
    if environ.get("DOCKER_TLS_VERIFY") and not url.startswith("unix://"):
        return Endpoint(url=url, named_by=named_by, certificates=Path(environ.get("DOCKER_CERT_PATH") or config))
    return Endpoint(url=url, named_by=named_by)


def _current_context(config: Path) -> str | None:
    path = config / "config.json"
    try:
        held = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error}): mend it, or set DOCKER_HOST") from None
    return held.get("currentContext")


def _from_context(name: str, named_by: str, config: Path) -> Endpoint:
    directory = hashlib.sha256(name.encode()).hexdigest()
    path = config / "contexts" / "meta" / directory / "meta.json"
    try:
        endpoint: dict[str, Any] = msgspec.json.decode(path.read_bytes())["Endpoints"]["docker"]
        url: str = endpoint["Host"]
    except FileNotFoundError:
        raise SpecError(f"there is no docker context {name!r} ({named_by}); `docker context ls` shows them") from None
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        raise SpecError(f"{path} names no docker host: make the context {name!r} again, or set DOCKER_HOST") from None
    certificates = config / "contexts" / "tls" / directory / "docker"
    return Endpoint(
        url=url,
        named_by=f"docker context {name!r}",
        certificates=certificates if certificates.is_dir() else None,
        verify=not endpoint.get("SkipTLSVerify", False),
    )


def _checked(endpoint: Endpoint) -> Endpoint:
    scheme = endpoint.url.partition("://")[0]
    if scheme == "ssh":
        raise SpecError(
            f"{endpoint.url} ({endpoint.named_by}): Docker over ssh is not built; forward the socket with "
            "`ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST` and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    if scheme not in ("unix", "tcp", "http", "https") or not (endpoint.socket or urlsplit(endpoint.url).hostname):
        raise SpecError(f"{endpoint.url!r} ({endpoint.named_by}) is no Docker address; one looks like {DEFAULT_URL}")
    return endpoint


def _tls(certificates: Path, *, verify: bool) -> ssl.SSLContext:
    authority = certificates / "ca.pem"
    context = ssl.create_default_context(cafile=authority if authority.exists() else None)
    if (certificates / "cert.pem").exists():
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
