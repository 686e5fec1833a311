"""The pods' bridge on this machine, and three rules that let them out: made once, removed exactly."""

import subprocess

from cluster.places import ADDRESS, BRIDGE, BRIDGE_MAC, POD_NETWORK

_NAMED = ("-m", "comment", "--comment", "excise-substrates")
RULES = (
    ("nat", "POSTROUTING", ("-s", POD_NETWORK, "!", "-o", BRIDGE, *_NAMED, "-j", "MASQUERADE")),
    # Before Docker's, which drop what is forwarded and not its own.
    ("filter", "FORWARD", ("-i", BRIDGE, *_NAMED, "-j", "ACCEPT")),
    ("filter", "FORWARD", ("-o", BRIDGE, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", *_NAMED, "-j", "ACCEPT")),
)


def make() -> None:
    """What is not there yet. The bridge's hardware address is fixed: else it changes as pods come and go, and loses packets."""
    if not is_there(BRIDGE):
        _run("ip", "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
    _run("ip", "address", "replace", f"{ADDRESS}/{POD_NETWORK.partition('/')[2]}", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    for table, chain, rule in RULES:
        if not _succeeds("iptables", "-w", "-t", table, "-C", chain, *rule):
            _run("iptables", "-w", "-t", table, "-I", chain, *rule)


def remove() -> None:
    for table, chain, rule in RULES:
        while _succeeds("iptables", "-w", "-t", table, "-D", chain, *rule):
            pass  # as often as it is there
    if is_there(BRIDGE):
        _run("ip", "link", "delete", BRIDGE)


def is_there(interface: str) -> bool:
    return _succeeds("ip", "link", "show", interface)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
