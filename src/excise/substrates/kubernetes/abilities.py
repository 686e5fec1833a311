"""What a cluster's pods can do by exec, by what the address says of the cluster."""

from typing import Literal

from excise.spec import Kernel
from excise.substrate import Capabilities
from excise.substrates.kubernetes.options import Options

_KERNELS: dict[str, Kernel] = {"gvisor": "intercepted", "runsc": "intercepted", "kata": "own"}


def find(options: Options, version: str) -> Capabilities:
    """What both paths into a pod have.

    No limit on processes: a pod has none, only its node has. None on disk: a pod over its ephemeral storage is evicted, which
    is a loss. No users: an exec is the container's.
    """
    closed: frozenset[Literal["none", "allow", "open"]] = frozenset({"none", "open"})
    enforced = options.network_policy and options.network_enforced
    return Capabilities(
        kernel=kernel(options.runtime_class),
        isolates=frozenset({"files", "processes", "network", "ipc"}),
        adopts=frozenset({"secrets"}),
        stream=True,
        pty=True,
        background=True,
        limits=frozenset({"memory_bytes", "cpus"}),
        network=closed if enforced else frozenset({"open"}),
        versions={"kubernetes": version, "runtime_class": options.runtime_class or "default"},
    )


def kernel(runtime_class: str | None) -> Kernel:
    """By the names that gVisor's and Kata's own installers give; a class of another name is taken for the host's kernel."""
    named = (runtime_class or "").partition("-")[0]
    return _KERNELS.get(named, "shared")
