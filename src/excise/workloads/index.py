"""One archive of a Python package index, by the settings pip has here, and only if its bytes are the expected ones."""

import base64
import hashlib
import html.parser
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

import msgspec

from excise.errors import SpecError, SubstrateError

_TIMEOUT_S = 60.0
_LARGEST_BYTES = 64 << 20


class Archive(msgspec.Struct, frozen=True):
    """A source archive and the digest its bytes must have."""

    project: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.project}-{self.version}.tar.gz"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of pip's configuration says where packages come from."""

    indexes: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    """Local directories of archives (`find-links`), asked first."""
    certificates: str | None = None


def settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """pip's own answer: its variables, else its configuration files, else what pip uses if nobody says."""
    configured = {**_files(environ), **_variables(environ)}
    first = configured.get("index-url") or _usual_index()
    asked = (first, *configured.get("extra-index-url", "").split())
    return Settings(
        indexes=() if _true(configured.get("no-index")) else tuple(index for index in asked if index),
        folders=tuple(Path(link) for link in configured.get("find-links", "").split() if Path(link).is_dir()),
        certificates=configured.get("cert"),
    )


def fetch(archive: Archive, where: Settings) -> bytes:
    """The archive's bytes, from the first place that has it."""
    for folder in where.folders:
        if (folder / archive.file).is_file():
            return _checked(archive, (folder / archive.file).read_bytes(), str(folder))
    if not where.indexes:
        raise SpecError(
            f"{archive.file} is needed, and pip here has no index; set PIP_INDEX_URL, or PIP_FIND_LINKS to its directory"
        )
    reasons: list[str] = []
    for index in where.indexes:
        try:
            return _checked(archive, _from_index(archive, index, where.certificates), _shown(index))
        except _Absent as reason:
            reasons.append(f"{_shown(index)}: {reason}")
    raise SubstrateError(
        f"{archive.file} cannot be had ({'; '.join(reasons)}); connect to a package index, "
        "or set PIP_INDEX_URL or PIP_FIND_LINKS to where it is"
    )


class _Absent(Exception):  # noqa: N818 - what the archive is
    """This index does not have it, or does not answer."""


def _from_index(archive: Archive, index: str, certificates: str | None) -> bytes:
    page = f"{index.rstrip('/')}/{archive.project}/"
    text, at = _get(page, certificates)
    for link in _links(text.decode("utf-8", "replace")):
        target = urldefrag(urljoin(at, link)).url
        if unquote(urlsplit(target).path).rpartition("/")[2] == archive.file:
            # Credentials of the index are for the index, and for files that lie on the same host.
            data, _ = _get(_with_login(target, index), certificates)
            return data
    raise _Absent("it does not list the file")


def _get(url: str, certificates: str | None) -> tuple[bytes, str]:
    """The bytes at `url`, and the address they came from in the end."""
    plain, login = _without_login(url)
    if urlsplit(plain).scheme not in ("http", "https"):
        raise _Absent(f"{urlsplit(plain).scheme or 'no scheme'}:// is not an index")
    headers = {"Accept": "text/html, */*;q=0.1", "User-Agent": "excise"}
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(plain, headers=headers)  # noqa: S310 - the scheme was looked at above
    try:
        context = ssl.create_default_context(cafile=certificates)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310
            data = answer.read(_LARGEST_BYTES + 1)
            at = answer.url
    except (URLError, OSError) as error:
        raise _Absent(getattr(error, "reason", None) or str(error) or type(error).__name__) from None
    if len(data) > _LARGEST_BYTES:
        raise _Absent(f"it sends more than {_LARGEST_BYTES >> 20} MiB")
    return data, at


def _checked(archive: Archive, data: bytes, where: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != archive.sha256:
        raise SpecError(
            f"{archive.file} from {where} is another file: its sha256 is {found}, not {archive.sha256}; use an index that "
            "serves the original"
        )
    return data


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.found.append(target)


def _links(text: str) -> list[str]:
    parser = _Links()
    parser.feed(text)
    return parser.found


# ---- pip's configuration


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = ("index-url", "extra-index-url", "find-links", "no-index", "cert")
    pairs = ((name, environ.get(f"PIP_{name.upper().replace('-', '_')}")) for name in names)
    return {name: value for name, value in pairs if value}


def _files(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip's configuration files say, asked of pip itself: it knows where they lie and which of them wins."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        asked = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=dict(environ))
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(_pairs(asked.stdout)) if asked.returncode == 0 else {}


def _pairs(listing: str) -> Iterator[tuple[str, str]]:
    """Of lines such as global.index-url='https://...': what concerns every command, or downloads."""
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in ("global", "install", "download") and value[:1] in "'\"":
            yield name, value[1:-1].replace("\\n", " ")


def _usual_index() -> str | None:
    """The index that pip has built in; None where pip is not installed."""
    try:
        return import_module("pip._internal.models.index").PyPI.simple_url
    except (ImportError, AttributeError):
        return None


def _true(value: str | None) -> bool:
    return (value or "").lower() in ("1", "true", "yes", "on")


# ---- logins in addresses: used, and never shown


def _without_login(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(login)


def _with_login(url: str, index: str) -> str:
    parts = urlsplit(url)
    login, _, host = urlsplit(index).netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}")) if login and parts.netloc == host else url


def _shown(url: str) -> str:
    return _without_login(url)[0]
