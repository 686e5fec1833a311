"""What machines can do, by the path that is taken into them."""

import msgspec

from excise.substrate import Capabilities
from excise.substrates.vm.making import Found


def by_ssh(found: Found) -> Capabilities:
    """What a command on an ssh connection comes to."""
    return Capabilities(
        kernel="own",
        isolates=frozenset({"files", "processes", "network", "ipc", "users"}),
        adopts=frozenset({"secrets"}),
        stream=True,
        pty=True,
        users=True,
        pause=True,
        ports=True,
        background=True,
        limits=frozenset({"memory_bytes", "cpus", "pids", "disk_bytes", "inodes"}),
        network=frozenset({"none", "allow", "open"}),
        build_network=True,
        versions=found.versions(),
    )


def by_guest(found: Found) -> Capabilities:
    """The same machine, with what a guest inside adds."""
    return msgspec.structs.replace(by_ssh(found), sessions=True, signals=True, guest_clock=True)
