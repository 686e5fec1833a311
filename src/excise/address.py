"""The address grammar: one string that names a substrate in the CLI, plans, Python, results and report.

[WRAPPER:]NAME[+guest][?key=value[&key=value]]      pool:docker+guest?pool.count=64&host=unix:///run/docker.sock
NAME:key=value[,key=value]                          fake:broken=secrets, short for fake?broken=secrets
URL                                                 https://host:8700
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import msgspec

from excise.errors import SpecError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_WRAPPERS = ("pool", "hosted")
_SCHEMES = ("http://", "https://", "unix://")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed address; `str()` gives its one canonical spelling."""

    name: str
    guest: bool = False
    options: Mapping[str, str] = {}
    wrappers: tuple[str, ...] = ()
    url: str | None = None

    def __str__(self) -> str:
        if self.url:
            return "".join(f"{w}:" for w in self.wrappers) + self.url + _query(self.options)
        query = _query(self.options)
        return "".join(f"{w}:" for w in self.wrappers) + self.name + ("+guest" if self.guest else "") + query


def _query(options: Mapping[str, str]) -> str:
    return "?" + urlencode(options, safe="/:,.") if options else ""


def parse(text: str) -> Address:
    """The address `text` spells, or a SpecError that shows what one looks like."""
    head, mark, query = text.partition("?")
    wrappers: list[str] = []
    while ":" in head and head.partition(":")[0] in _WRAPPERS:
        wrapper, _, head = head.partition(":")
        wrappers.append(wrapper)
    if head.startswith(_SCHEMES):
        if head.endswith("://"):
            raise _malformed(text, "no host follows")
        return Address(name="remote", url=head, options=_options(text, query), wrappers=tuple(wrappers))
    name, colon, short = head.partition(":")
    if colon and query:
        raise _malformed(text, "options are given twice, after ':' and after '?'")
    name, plus, path = name.partition("+")
    if not _NAME.fullmatch(name):
        raise _malformed(text, f"{name!r} is not a name")
    if plus and path != "guest":
        raise _malformed(text, f"'+{path}' is not a path; there is +guest")
    options = short.replace(",", "&") if colon else query
    if (colon or mark) and not options:
        raise _malformed(text, "no option follows")
    return Address(name=name, guest=bool(plus), options=_options(text, options), wrappers=tuple(wrappers))


def _options(text: str, query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        pairs = []
    options = dict(pairs)
    if not options or "" in options:
        raise _malformed(text, f"{query!r} is not key=value")
    if len(options) != len(pairs):
        raise _malformed(text, "a key is given twice")
    return options


def _malformed(text: str, reason: str) -> SpecError:
    return SpecError(f"{text!r} is not an address: {reason}; one looks like docker, pool:docker+guest or local?key=value")
