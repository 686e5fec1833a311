"""Who may be reached: ranges, names, entries."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.network.policy import CLOSED, Address, Policy, Refused, as_address, as_host, embedded, kind_of

OPEN = Policy("open")
CLOSED_BLOCKS = [(kind, block) for kind, blocks in CLOSED.items() for block in blocks]


def allow(*hosts: str, ports: tuple[int, ...] = (443,)) -> Policy:
    return Policy.allowing(hosts, ports)


def passes(policy: Policy, address: str, *, by_name: str | None = None, is_own: bool = False) -> bool:
    try:
        policy.check(ip_address(address), by_name=by_name, is_own=is_own)
    except Refused:
        return False
    return True


CLOSED_TABLE = [
    "0.0.0.0",  # noqa: S104
    "0.1.2.3",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.0.0",
    "169.254.169.254",
    "10.0.0.0",
    "10.255.255.255",
    "172.16.0.0",
    "172.31.255.255",
    "192.168.0.0",
    "192.168.255.255",
    "100.64.0.0",
    "100.127.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "198.18.0.1",
    "192.0.0.8",
    "::",
    "::1",
    "fe80::",
    "fe80::1",
    "febf::1",
    "fc00::1",
    "fd00:ec2::254",
    "fdff::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "::ffff:192.168.1.1",
    "::ffff:100.64.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001::1",
    "::7f00:1",
]
PUBLIC_TABLE = [
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "223.255.255.255",
    "2606:4700::1111",
    "2001:4860:4860::8888",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
    "fbff::1",
]


@pytest.mark.parametrize("address", CLOSED_TABLE)
def test_closed(address: str) -> None:
    assert not passes(OPEN, address)
    assert not passes(OPEN, address, by_name="rebound.example")
    assert not passes(allow("rebound.example"), address, by_name="rebound.example")
    assert not passes(allow("0.0.0.0/0", "::/0"), address), "a block wider than a closed range does not open it"


@pytest.mark.parametrize("address", PUBLIC_TABLE)
def test_public(address: str) -> None:
    assert passes(OPEN, address)
    assert passes(allow("named.example"), address, by_name="named.example")
    assert passes(allow("0.0.0.0/0", "::/0"), address)
    assert not passes(allow("192.0.2.1"), address)


@pytest.mark.parametrize(("kind", "block"), CLOSED_BLOCKS, ids=[str(block) for _, block in CLOSED_BLOCKS])
def test_a_range_ends_where_it_says(kind: str, block: object) -> None:
    assert isinstance(block, type(ip_network("0.0.0.0/8")) | type(ip_network("::/128")))
    for inside in (block[0], block[-1]):
        assert kind_of(inside) is not None, f"{inside} of {kind}"


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@given(addresses)
def test_open_means_what_python_calls_global_or_at_least_not_private(address: Address) -> None:
    """Against the standard library's own tables, which know more ranges (documentation) that lead nowhere."""
    meant = embedded(address)
    if passes(OPEN, str(address)):
        assert not any((meant.is_loopback, meant.is_link_local, meant.is_multicast, meant.is_unspecified))
        if meant.is_private:
            documentation = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "100::/64")
            others = ("2001:2::/48", "2001:10::/28", "5f00::/16", "3fff::/20", "2001::/23", "100:0:0:1::/64")
            assert any(meant in ip_network(block) for block in documentation + others), meant
    else:
        assert not meant.is_global or kind_of(meant) in ("a tunnel's", "reserved", "multicast"), meant


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_the_one_inside(inside: IPv4Address) -> None:
    mapped = f"::ffff:{inside}"
    assert as_address(mapped) == inside
    assert passes(OPEN, mapped) == passes(OPEN, str(inside)) == passes(OPEN, f"64:ff9b::{inside}")
    assert allow(mapped) == allow(str(inside))


@given(addresses, st.data())
def test_an_address_that_is_listed_is_reached_and_its_neighbour_is_not(address: Address, data: st.DataObject) -> None:
    policy = allow(str(address))
    other = data.draw(addresses.filter(lambda other: embedded(other) != embedded(address)))
    assert passes(policy, str(address))
    assert passes(policy, str(address), is_own=True)
    assert not passes(policy, str(other))


def test_a_block_opens_a_private_range_if_it_lies_in_it() -> None:
    assert passes(allow("10.1.0.0/16"), "10.1.2.3")
    assert not passes(allow("10.1.0.0/16"), "10.2.0.1")
    assert not passes(allow("8.0.0.0/6"), "10.1.2.3")
    assert passes(allow("fd00::/8"), "fd12::1")
    assert not passes(allow("fd00::/8"), "::1")


def test_the_hosts_own_addresses_are_opened_one_by_one() -> None:
    assert not passes(OPEN, "1.1.1.1", is_own=True)
    assert not passes(allow("1.1.1.0/24"), "1.1.1.1", is_own=True)
    assert not passes(allow("10.0.0.0/8"), "10.0.0.1", is_own=True)
    assert not passes(allow("127.0.0.0/8"), "127.0.0.1")
    assert passes(allow("127.0.0.1"), "127.0.0.1", is_own=True)
    assert not passes(allow("127.0.0.1"), "127.0.0.2", is_own=True)


def test_a_listed_name_that_leads_to_a_listed_address_is_reached() -> None:
    assert passes(allow("git.example", "10.0.0.5"), "10.0.0.5", by_name="git.example")
    assert not passes(allow("git.example", "10.0.0.5"), "10.0.0.6", by_name="git.example")


def test_names_are_compared_in_one_way() -> None:
    policy = allow("Example.org.", "*.Pool.example")
    for host in ("example.org", "EXAMPLE.ORG", "example.org.", "a.pool.example", "a.b.POOL.example."):
        name = as_host(host)
        assert name is not None
        assert policy.asked(name, 443) == name
    for host in ("www.example.org", "pool.example", "badpool.example", "example.org.evil", "org", "10.0.0.1.pool"):
        with pytest.raises(Refused, match=f"{host}:443: the host is not listed; add it to Allow"):
            policy.asked(host, 443)


def test_a_port_that_is_not_listed_is_refused_and_open_has_them_all() -> None:
    with pytest.raises(Refused, match=r"example\.org:80: port 80 is not listed; add it"):
        allow("example.org").asked("example.org", 80)
    assert allow("example.org", ports=(80, 8080)).asked("example.org", 8080) == "example.org"
    assert OPEN.asked("example.org", 25) == "example.org"


def test_none_refuses_everything() -> None:
    with pytest.raises(Refused, match="no network now"):
        Policy().asked("example.org", 443)


def test_an_address_in_a_request_is_no_name() -> None:
    assert OPEN.asked("1.1.1.1", 443) == IPv4Address("1.1.1.1")
    assert OPEN.asked("2606:4700::1111", 443) == IPv6Address("2606:4700::1111")
    # Not an address as it is written, so it is looked up, and the address found is checked.
    assert OPEN.asked("2130706433", 443) == "2130706433"
    with pytest.raises(Refused, match="the host is not listed"):
        allow("127.0.0.1").asked("2130706433", 443)


@pytest.mark.parametrize(
    "text", ["", ".", "a..b", "-a", "a-", "a b", "a/b", "a\r\nb", "ä", "a" * 64, "a." * 130, "fe80::1%eth0", "[::1", "*"]
)
def test_what_is_no_host(text: str) -> None:
    assert as_host(text) is None


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "*a.example", "http://example.org", "example.org:443", "10.0.0.1/8", "a/b", "fe80::1%1"]
)
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(ValueError, match="hosts"):
        allow(entry)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "443"])
def test_what_is_no_port(port: int) -> None:
    with pytest.raises(ValueError, match="a port is a number"):
        allow("example.org", ports=(port,))


@given(
    st.lists(st.sampled_from(["example.org", "*.example.org", "10.0.0.0/8", "::1", "1.2.3.4"])), st.sets(st.integers(1, 65535))
)
def test_a_policy_survives_its_journey(hosts: list[str], ports: set[int]) -> None:
    policy = Policy.allowing(hosts, ports)
    again = Policy.unpacked(policy.packed())
    assert (again._replace(blocks=()), set(again.blocks)) == (policy._replace(blocks=()), set(policy.blocks))
    assert Policy.unpacked(OPEN.packed()) == OPEN


def test_every_refusal_says_what_to_do() -> None:
    for policy, address, by_name in (
        (OPEN, "10.0.0.1", "a.example"),
        (OPEN, "127.0.0.1", None),
        (allow("1.1.1.1"), "1.1.1.2", None),
    ):
        with pytest.raises(Refused, match=r"Allow\(hosts, ports\)") as caught:
            policy.check(ip_address(address), by_name=by_name, is_own=False)
        assert address in str(caught.value)
        assert "\n" not in str(caught.value)
