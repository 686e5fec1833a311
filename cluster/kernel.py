"""The kernel's settings that the parts change for the whole machine: noted before, put back after."""

import json
from pathlib import Path

_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
)
"""The kubelet sets all but the last two; the pods' way out of the machine needs those."""
_TOP = Path("/proc/sys")


def note(path: Path) -> None:
    """What they were, once: when the cluster is mended, they are as the cluster has them."""
    if path.exists():
        return
    found = {name: (_TOP / name).read_text().strip() for name in _SETTINGS if (_TOP / name).exists()}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found, indent=2))
    new.rename(path)


def forward() -> None:
    """Packets of pods go on to where they are meant for."""
    (_TOP / "net/ipv4/ip_forward").write_text("1")


def restore(path: Path) -> None:
    if path.exists():
        for name, value in json.loads(path.read_text()).items():
            (_TOP / name).write_text(value)
