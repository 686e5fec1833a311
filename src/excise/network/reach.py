"""From a request to a connected socket, by way of the policy: what was checked is what is connected to."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from excise.network.policy import Address, Policy, Refused, embedded
from excise.network.routes import is_own

MOST_ADDRESSES = 8
"""How many of a name's addresses are tried, one after another."""
Lookup = Callable[[str], Awaitable[list[Address]]]


async def look_up(name: str) -> list[Address]:
    """A name's addresses as this host sees them. OSError if it has none."""
    # As bytes: a name is ASCII here, and Python would else run it through a codec with opinions of its own.
    found = await asyncio.get_running_loop().getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    # An address with a scope ("fe80::1%eth0") loses it here, and is refused as link-local.
    return [ip_address(str(row[4][0]).partition("%")[0]) for row in found]


async def reach(policy: Policy, host: str, port: int, lookup: Lookup = look_up) -> socket.socket:
    """A socket connected to the host. The name is looked up once; only addresses that pass are tried.

    Refused if the policy says no; OSError if nobody answers.
    """
    asked = policy.asked(host, port)
    by_name = asked if isinstance(asked, str) else None
    addresses = await lookup(asked) if isinstance(asked, str) else [asked]
    passed, refusal = _sifted(policy, addresses, by_name)
    if not passed:
        raise refusal or OSError("the name has no address")
    for address in passed[:-1]:
        with contextlib.suppress(OSError):
            return await _connected(address, port)
    return await _connected(passed[-1], port)


def _sifted(policy: Policy, addresses: list[Address], by_name: str | None) -> tuple[list[Address], Refused | OSError | None]:
    """The addresses that pass, and why the last that did not was refused."""
    passed: list[Address] = []
    refusal: Refused | OSError | None = None
    for address in dict.fromkeys(addresses[:MOST_ADDRESSES]):
        try:
            policy.check(address, by_name=by_name, is_own=is_own(embedded(address)) or is_own(address))
        except (Refused, OSError) as error:  # an address there is no route to is as good as none
            refusal = refusal if isinstance(refusal, Refused) else error
        else:
            passed.append(address)
    return passed, refusal


async def _connected(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    except BaseException:
        made.close()
        raise
    return made
