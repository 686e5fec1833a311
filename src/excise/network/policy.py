"""Who may be reached. Pure: names and addresses in, a verdict in one sentence out."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal, NamedTuple

Address = IPv4Address | IPv6Address
Block = IPv4Network | IPv6Network
Mode = Literal["none", "allow", "open"]

LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

CLOSED: Mapping[str, tuple[Block, ...]] = {
    words: tuple(map(ip_network, blocks))
    for words, blocks in {
        "unspecified": ("0.0.0.0/8", "::/128"),
        "loopback": ("127.0.0.0/8", "::1/128"),
        "link-local": ("169.254.0.0/16", "fe80::/10"),
        "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
        "shared (carrier-grade NAT)": ("100.64.0.0/10",),
        "multicast": ("224.0.0.0/4", "ff00::/8"),
        "reserved": ("192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        # Each holds an IPv4 address that some router on the way may unpack.
        "a tunnel's": ("::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
    }.items()
}
"""Ranges that are not the public internet. The documentation ranges are not here: they lead nowhere by themselves."""

_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_BITS = 0xFFFFFFFF


class Refused(Exception):  # noqa: N818 - what happened to the request
    """The policy says no; the text says to what, and what would help."""


class Policy(NamedTuple):
    """What one sandbox may reach."""

    mode: Mode = "none"
    names: frozenset[str] = frozenset()
    suffixes: frozenset[str] = frozenset()
    """Of `*.example.org`: "example.org"."""
    blocks: tuple[Block, ...] = ()
    ports: frozenset[int] = frozenset()

    @classmethod
    def allowing(cls, hosts: Iterable[str], ports: Iterable[int]) -> "Policy":
        """An allow-list; ValueError for an entry that is none."""
        names: set[str] = set()
        suffixes: set[str] = set()
        blocks: list[Block] = []
        for host in hosts:
            block = _block(host)
            if block is not None:
                blocks.append(block)
            elif host.startswith("*."):
                suffixes.add(_listed_name(host[2:], host))
            else:
                names.add(_listed_name(host, host))
        chosen = frozenset(ports)
        if not all(type(port) is int and 0 < port < 65536 for port in chosen):
            raise ValueError(f"ports={sorted(map(str, chosen))}: a port is a number from 1 to 65535")
        return cls("allow", frozenset(names), frozenset(suffixes), tuple(blocks), chosen)

    def asked(self, host: str, port: int) -> Address | str:
        """The host as an address, or as a name that may be looked up. Refused before any lookup if it is not listed."""
        if self.mode == "none":
            raise Refused(f"{host}:{port}: this sandbox has no network now; give the spec network= or build_network=")
        if self.mode == "allow" and port not in self.ports:
            raise Refused(f"{host}:{port}: port {port} is not listed; add it to Allow(hosts, ports)")
        address = as_address(host)
        if address is not None:
            return address
        if self.mode == "allow" and not self._lists(host):
            raise Refused(f"{host}:{port}: the host is not listed; add it to Allow(hosts, ports)")
        return host

    def _lists(self, name: str) -> bool:
        if name in self.names:
            return True
        labels = name.split(".")
        return any(".".join(labels[at:]) in self.suffixes for at in range(1, len(labels)))

    def check(self, address: Address, *, by_name: str | None, is_own: bool) -> None:
        """Refuse an address, be it the one asked for or one that the name `by_name` leads to."""
        meant = embedded(address)
        listed = [block for block in self.blocks if meant in block]
        whose = f"{by_name} leads to {address}, which" if by_name else f"{address}"
        if is_own or kind_of(meant) == "loopback":
            if not any(block.num_addresses == 1 for block in listed):
                raise Refused(f"{whose} is this host's own; list that very address in Allow(hosts, ports) to reach it")
        elif (kind := kind_of(meant)) is not None:
            if not any(_lies_in(block, CLOSED[kind]) for block in listed):
                raise Refused(f"{whose} is {kind}; list the address, or a block of that range, in Allow(hosts, ports)")
        elif self.mode == "allow" and not by_name and not listed:
            raise Refused(f"{whose} is not listed; add it to Allow(hosts, ports)")

    def packed(self) -> dict[str, Any]:
        """As JSON can carry it."""
        hosts = [*self.names, *(f"*.{suffix}" for suffix in self.suffixes), *map(str, self.blocks)]
        return {"mode": self.mode, "hosts": hosts, "ports": list(self.ports)}

    @classmethod
    def unpacked(cls, record: Mapping[str, Any]) -> "Policy":
        return cls.allowing(record["hosts"], record["ports"])._replace(mode=record["mode"])


def kind_of(address: Address) -> str | None:
    """Which closed range it lies in; None for the public internet."""
    for kind, blocks in CLOSED.items():
        if any(address in block for block in blocks):
            return kind
    return None


def embedded(address: Address) -> Address:
    """The IPv4 address inside an IPv4-mapped or a NAT64 one, for that is who is reached; else the address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & _IPV4_BITS)
    return address


def as_address(host: str) -> Address | None:
    """A literal; None for a name. An IPv4-mapped one is the IPv4 address.

    Other spellings of an IPv4 address (`127.1`, `0x7f000001`) are names, and end as the address a lookup makes of them.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return None if address.scope_id is not None else address.ipv4_mapped or address
    return address


def as_name(text: str) -> str | None:
    """A host name, in the one way it is compared in; None if it is none."""
    name = text.lower().removesuffix(".")
    if not name or len(name) > LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        return None
    return name


def as_host(text: str) -> str | None:
    """A name or a literal as a request gives it; None for what is neither, which is shown to nobody."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    address = as_address(inner)
    return str(address) if address is not None else as_name(text)


def _lies_in(block: Block, ranges: tuple[Block, ...]) -> bool:
    return any(_is_part(block, whole) for whole in ranges)


def _is_part(block: Block, whole: Block) -> bool:
    if isinstance(block, IPv4Network):
        return isinstance(whole, IPv4Network) and block.subnet_of(whole)
    return isinstance(whole, IPv6Network) and block.subnet_of(whole)


def _block(host: str) -> Block | None:
    """An entry that is an address or a block of them; one that holds IPv4 addresses is the block of those."""
    if "%" in host:
        raise ValueError(f"hosts: {host!r} has a scope; name an address that means the same everywhere")
    try:
        block = ip_network(host)
    except ValueError:
        if "/" in host:
            raise ValueError(f"hosts: {host!r} is no block of addresses; write 10.1.0.0/16, without a host's bits") from None
        return None
    inside = embedded(block.network_address)
    if isinstance(block, IPv6Network) and block.prefixlen >= 96 and isinstance(inside, IPv4Address):
        return IPv4Network((inside, block.prefixlen - 96))
    return block


def _listed_name(name: str, entry: str) -> str:
    found = as_name(name)
    if found is None:
        raise ValueError(f"hosts: {entry!r} is no host; write a name, *.name, an address or a block of addresses")
    return found
