"""An image's name as registries know it: `[host[:port]/]path[:tag][@digest]`."""

import ipaddress
import re

import msgspec

from excise.errors import SpecError

HUB = "docker.io"
"""Whose images have names without a host, as for Docker."""
_PATH = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
)


class Reference(msgspec.Struct, frozen=True):
    """Where an image is."""

    registry: str
    path: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.path}{tag}{digest}"

    @property
    def address(self) -> str:
        """The registry's URL. Without TLS on this machine alone, as for Docker."""
        host = f"registry-1.{HUB}" if self.registry == HUB else self.registry
        return f"{'http' if _is_loopback(host) else 'https'}://{host}"


def parse(name: str) -> Reference:
    """The reference `name` means; a host is what has a dot or a port, or is localhost. Without one it is Docker Hub's."""
    rest, at, digest = name.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise SpecError(f"{name!r} is no image: its digest is not sha256: and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry = first
    else:
        registry, path = HUB, rest
    path, colon, tag = path.partition(":")
    if registry == HUB and "/" not in path:
        path = f"library/{path}"
    if not _PATH.fullmatch(path) or (colon and not _TAG.fullmatch(tag)) or not _HOST.fullmatch(registry):
        raise SpecError(f"{name!r} is no image: write [host[:port]/]name[:tag], in lower case")
    return Reference(registry, path, tag if colon else None if at else "latest", digest or None)


def _is_loopback(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
