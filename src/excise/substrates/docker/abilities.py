"""What a daemon's containers can do, by what the daemon says of itself."""

from collections.abc import Mapping
from typing import Any

from excise.errors import CreateError
from excise.spec import Kernel
from excise.substrate import Capabilities, Term
from excise.substrates.docker.engine import Engine

_KERNELS: dict[str, Kernel] = {
    "runsc": "intercepted",
    "kata": "own",
    "kata-runtime": "own",
    "kata-qemu": "own",
    "kata-fc": "own",
}


def find(engine: Engine, info: Mapping[str, Any], asked: str | None) -> Capabilities:
    """What both paths into a container have, with `asked` as the runtime, or the daemon's own."""
    runtime: str = asked or info.get("DefaultRuntime") or "runc"
    if runtime not in (info.get("Runtimes") or {runtime: {}}):
        known = ", ".join(sorted(info["Runtimes"]))
        raise CreateError(f"the Docker daemon knows no runtime {runtime!r}, only: {known}")
    enforced: dict[Term, str] = {"memory_bytes": "MemoryLimit", "cpus": "CpuCfsQuota", "pids": "PidsLimit"}
    limits = frozenset[Term](name for name, key in enforced.items() if info.get(key))
    return Capabilities(
        kernel=_KERNELS.get(runtime, "shared"),
        isolates=frozenset({"files", "processes", "network", "ipc"}),
        snapshot="files",
        diff=frozenset({"start"}),
        adopts=frozenset[Term]((*limits, "secrets")),
        stream=True,
        pty=True,
        users=True,
        pause=True,
        mounts=True,
        background=True,
        limits=limits,
        network=frozenset({"none", "open"}),
        versions={"docker": engine.version["Version"], "runtime": runtime},
    )
